#include "train/metrics.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "support/scratch.h"

namespace hyperparallel::train {
namespace {

StepMetrics metrics_of(int64_t step) {
  StepMetrics metrics = {.step = step,
                         .loss = 5.0 + 1.0 / 3 / static_cast<double>(step),
                         .grad_norm = 1.23456789012,
                         .lr = 3e-4,
                         .tokens = 2048,
                         .supervised_tokens = 17,
                         .seconds = 0.5,
                         .data_seconds = 0.01,
                         .memory_rss_bytes = 123456789,
                         .extra = {{"validation_metrics/loss", 4.5}}};
  metrics.set_rates(1e9, 100);
  return metrics;
}

std::vector<nlohmann::json> records(const std::filesystem::path& path) {
  std::vector<nlohmann::json> found;
  std::istringstream lines(file::read(path));
  for (std::string line; std::getline(lines, line);) found.push_back(nlohmann::json::parse(line));
  return found;
}

std::vector<int64_t> steps(const std::filesystem::path& path) {
  std::vector<int64_t> found;
  for (const auto& record : records(path)) found.push_back(record.at("step"));
  return found;
}

TEST(MetricsFile, LineHoldsEveryFieldWithNineDigits) {
  const std::string line = to_json(metrics_of(1));
  EXPECT_THAT(line, testing::HasSubstr("\"loss\":5.33333333,\"grad_norm\":1.23456789,"));
  const auto record = nlohmann::json::parse(line);
  for (const char* key : {"step", "loss", "grad_norm", "lr", "tokens", "supervised_tokens", "seconds", "tokens_per_second", "mfu",
                          "memory_rss_bytes", "data_seconds", "validation_metrics/loss"}) {
    EXPECT_TRUE(record.contains(key)) << key;
  }
  EXPECT_EQ(record.at("tokens_per_second"), 4096);
  EXPECT_EQ(record.at("mfu"), 0.02);  // 1 GFLOP in half a second on a machine of 100 GFLOP/s
}

TEST(MetricsFile, NotFiniteBecomesNull) {
  StepMetrics metrics = metrics_of(1);
  metrics.loss = std::numeric_limits<double>::quiet_NaN();
  metrics.extra["x"] = std::numeric_limits<double>::infinity();
  const auto record = nlohmann::json::parse(to_json(metrics));
  EXPECT_TRUE(record.at("loss").is_null());
  EXPECT_TRUE(record.at("x").is_null());
}

TEST(MetricsFile, ResumedRunHoldsEachStepOnce) {
  const Scratch scratch;
  const auto path = scratch / "metrics.jsonl";
  {
    MetricsFile sink(path, 0);
    for (int64_t step = 1; step <= 7; ++step) sink.write(metrics_of(step));
  }
  MetricsFile sink(path, 4);
  for (int64_t step = 5; step <= 6; ++step) sink.write(metrics_of(step));
  EXPECT_THAT(steps(path), testing::ElementsAre(1, 2, 3, 4, 5, 6));
}

TEST(MetricsFile, TornAndForeignLinesAreDroppedOnResume) {
  const Scratch scratch;
  const auto path = scratch / "metrics.jsonl";
  const std::string whole = to_json(metrics_of(1)) + "\n" + to_json(metrics_of(2)) + "\nnot a record\n";
  file::write(path, whole + to_json(metrics_of(3)).substr(0, 20));
  MetricsFile(path, 10).write(metrics_of(11));
  EXPECT_THAT(steps(path), testing::ElementsAre(1, 2, 11));
  MetricsFile(path, 0);
  EXPECT_THAT(steps(path), testing::IsEmpty());
}

TEST(MemoryUse, IsPlausible) {
  const MemoryUse use = memory_use();
  EXPECT_GT(use.rss_bytes, 1 << 20);
  EXPECT_GE(use.peak_rss_bytes, use.rss_bytes);
  EXPECT_GT(use.machine_bytes, use.rss_bytes);
}

TEST(PeakGflops, IsPlausible) {
  const double gflops = measure_peak_gflops();
  EXPECT_GT(gflops, 0.1);
  EXPECT_LT(gflops, 1e6);
}

}  // namespace
}  // namespace hyperparallel::train
