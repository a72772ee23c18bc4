#include "optim/schedule.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "golden.h"

namespace hyperparallel::optim {
namespace {

TEST(Schedule, GoldenTablesHold) {
  const nlohmann::json tables = golden_json("schedules.json").at("tables");
  ASSERT_EQ(tables.size(), 16);
  for (const auto& table : tables) {
    const Schedule schedule = {.kind = parse_schedule_kind(table.at("kind").get<std::string>()),
                               .warmup_from = parse_warmup_from(table.at("warmup_counts_from").get<std::string>()),
                               .total_steps = table.at("total_steps"),
                               .warmup_steps = table.at("warmup_steps"),
                               .base_lr = table.at("base_lr"),
                               .min_lr = table.at("min_lr"),
                               .start_lr = table.at("start_lr"),
                               .decay_ratio = table.value("decay_ratio", 1.0),
                               .stable_until = table.value("stable_until", 0.0),
                               .decay_until = table.value("decay_until", 0.0)};
    EXPECT_THAT(check(schedule), testing::IsEmpty());
    for (size_t step = 0; step < table.at("lr").size(); ++step) {
      const double expected = table["lr"][step];
      EXPECT_NEAR(learning_rate(schedule, static_cast<double>(step)), expected, 1e-12 * expected)
          << table["kind"] << " step " << step;
    }
  }
}

TEST(Schedule, PositionsMayBeTokens) {
  const Schedule schedule = {
      .kind = ScheduleKind::kWsdCosine, .base_lr = 2.6e-4, .min_lr = 2.6e-5, .stable_until = 28e12, .decay_until = 40e12};
  const auto rows = golden_json("schedules.json").at("v41_pretraining_after_warmup").at("rows");
  ASSERT_FALSE(rows.empty());
  for (const auto& row : rows) EXPECT_NEAR(learning_rate(schedule, row[0]), row[1], 1e-12 * row[1].get<double>());
}

TEST(Schedule, UnknownNamesTellWhatIsAccepted) {
  try {
    parse_schedule_kind("cosin");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("cosin"), testing::HasSubstr("wsd_linear")));
  }
  EXPECT_THROW(parse_warmup_from("zero"), ConfigError);
}

TEST(Schedule, CheckFindsEveryMistake) {
  const Schedule schedule = {
      .kind = ScheduleKind::kWsdLinear, .warmup_steps = -1, .base_lr = 1e-4, .min_lr = 1e-3, .stable_until = 9, .decay_until = 5};
  EXPECT_THAT(check(schedule), testing::SizeIs(3));
}

}  // namespace
}  // namespace hyperparallel::optim
