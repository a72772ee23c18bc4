#include "optim/sparse_adam.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "dist/thread_comm.h"
#include "golden.h"

namespace hyperparallel::optim {
namespace {

using engine::merge_rows;
using engine::RowGradients;
using engine::RowTable;

// A table under SparseAdam, with its moments.
struct Fixture {
  explicit Fixture(const at::Tensor& start, const SparseAdamSettings& settings, const std::filesystem::path& folder = {})
      : table(start.size(0), start.size(1), start.scalar_type(), folder) {
    table.write(0, start);
    parameters = {{"table", {}, {}, &table, {}}};
    const std::vector<ParameterSettings> rates{{Rule::kSparseAdam, 1, 0}};
    optimizer = std::make_unique<SparseAdam>(parameters, rates, settings, dist::self_group());
  }
  void step(const RowGradients& gradients, double lr, double coefficient) {
    parameters[0].gradient = gradients.values;
    parameters[0].rows = gradients.rows;
    optimizer->step(parameters, lr, coefficient);
  }
  at::Tensor moment(size_t which) const { return optimizer->state()[which].table->whole(); }
  int64_t steps() const { return optimizer->state()[2].value.item<int64_t>(); }

  RowTable table;
  std::vector<OptimizedParameter> parameters;
  std::unique_ptr<SparseAdam> optimizer;
};

class GoldenSparseAdam : public testing::TestWithParam<at::ScalarType> {};

TEST_P(GoldenSparseAdam, FourStepsHold) {
  const auto tensors = golden_tensors("sparse_adam.safetensors");
  const nlohmann::json golden = golden_json("sparse_adam.json");
  Fixture test(tensors.at("table.0").to(GetParam()), {golden.at("betas")[0], golden.at("betas")[1], golden.at("eps")});
  const at::Tensor table = test.table.whole(), first = test.moment(0), second = test.moment(1);
  for (int t = 1; t <= 4; ++t) {
    const std::string step = "." + std::to_string(t);
    const RowGradients merged = merge_rows(tensors.at("ids" + step), tensors.at("values" + step).to(GetParam()));
    EXPECT_TRUE(merged.rows.equal(tensors.at("merged_ids" + step))) << t;
    EXPECT_TRUE(merged.values.to(at::kDouble).allclose(tensors.at("merged_values" + step), 1e-6, 1e-9)) << t;
    const at::Tensor before = table.clone(), first_before = first.clone();
    test.step(merged, golden.at("lr"), 1);
    EXPECT_EQ(test.steps(), golden.at("step_after")[t - 1].get<int64_t>());
    for (const auto& [name, found] : {std::pair("table", table), std::pair("exp_avg", first), std::pair("exp_avg_sq", second)})
      expect_close(found, tensors.at(name + step), golden.at("fp32_error").at(name + step), name + step);
    for (int64_t row = 0; row < table.size(0); ++row) {
      if (merged.rows.eq(row).any().item<bool>()) continue;
      EXPECT_TRUE(table[row].equal(before[row]) && first[row].equal(first_before[row])) << row;  // bit for bit
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, GoldenSparseAdam, testing::Values(at::kFloat, at::kDouble),
                         [](const auto& info) { return std::string(at::toString(info.param)); });

TEST(SparseAdam, RepeatsAreSummedInTheirOrderAndTheCoefficientScalesThem) {
  const at::Tensor ids = at::tensor({5, 2, 5, 5}, at::kLong), values = at::tensor({1e8f, 1.f, 1.f, -1e8f}).view({4, 1});
  const RowGradients merged = merge_rows(ids, values);
  EXPECT_TRUE(merged.rows.equal(at::tensor({2, 5}, at::kLong)));
  EXPECT_EQ(merged.values[1].item<float>(), (1e8f + 1.f) - 1e8f);
  Fixture test(at::zeros({6, 1}), {0.5, 0.5, 0});
  test.step({at::tensor({2}, at::kLong), at::ones({1, 1})}, 0.1, 4);
  EXPECT_EQ(test.moment(0)[2].item<float>(), 2);
  EXPECT_EQ(test.moment(1)[2].item<float>(), 8);
}

TEST(SparseAdam, RowsOutsideTheTableAreRefusedAndNoneIsNoStep) {
  Fixture test(at::zeros({3, 2}), {});
  test.step(merge_rows(at::empty({0}, at::kLong), at::empty({0, 2})), 1, 1);
  EXPECT_EQ(test.steps(), 0);
  EXPECT_EQ(test.table.whole().abs().sum().item<float>(), 0);
  EXPECT_THROW(test.step({at::tensor({3}, at::kLong), at::ones({1, 2})}, 1, 1), InternalError);
}

// A rank whose rows are not hit counts the step all the same: the correction of the moments is that of one rank.
TEST(SparseAdam, RanksCountStepsTogether) {
  Fixture whole(at::zeros({2, 3}), {});
  const std::vector<RowGradients> steps = {{at::tensor({0}, at::kLong), at::ones({1, 3})},
                                           {at::tensor({1}, at::kLong), at::ones({1, 3})}};
  for (const RowGradients& step : steps) whole.step(step, 0.1, 1);
  dist::run_ranks(2, {}, [&](dist::World& world) {
    RowTable table(1, 3, at::kFloat);
    std::vector<OptimizedParameter> parameters{{"table", {}, {}, &table, {}}};
    const std::vector<ParameterSettings> rates{{Rule::kSparseAdam, 1, 0}};
    SparseAdam optimizer(parameters, rates, {}, world.make_group({.name = "stage", .members = {0, 1}}));
    for (const RowGradients& step : steps) {
      const at::Tensor mine = step.rows.eq(world.rank()).nonzero().flatten();
      parameters[0].rows = step.rows.index_select(0, mine) - world.rank();
      parameters[0].gradient = step.values.index_select(0, mine);
      optimizer.step(parameters, 0.1, 1);
    }
    EXPECT_TRUE(table.whole()[0].equal(whole.table.whole()[world.rank()]));
  });
}

}  // namespace
}  // namespace hyperparallel::optim
