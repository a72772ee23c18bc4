#include "train/progress.h"

#include <gmock/gmock.h>

#include "base/file.h"
#include "support/scratch.h"

namespace hyperparallel::train {
namespace {

constexpr int64_t kGiB = 1 << 30;

TEST(ProgressLine, DigitsAreFixed) {
  StepMetrics metrics = {.step = 12,
                         .loss = 5.4321,
                         .grad_norm = 1.2345,
                         .lr = 3e-4,
                         .tokens_per_second = 1234,
                         .tflops = 0.41,
                         .mfu = 0.498,
                         .memory_rss_bytes = kGiB + kGiB / 4};
  EXPECT_EQ(
      progress_line(metrics, 25 * kGiB),
      "step: 12  loss: 5.43210  grad_norm: 1.2345  lr: 3.0e-04  memory: 1.25GiB(5.00%)  tps: 1,234  tflops: 0.41  mfu: 49.8%");
  metrics.tokens_per_second = 1234567.4;
  EXPECT_THAT(progress_line(metrics, kGiB), testing::HasSubstr("tps: 1,234,567  "));
  metrics.tokens_per_second = 999.6;
  EXPECT_THAT(progress_line(metrics, kGiB), testing::HasSubstr("tps: 1,000  "));
  metrics.tokens_per_second = 7;
  EXPECT_THAT(progress_line(metrics, kGiB), testing::HasSubstr("tps: 7  "));
}

TEST(ProgressLine, FileGetsPlainLinesOfTheFirstEveryNthAndLastStep) {
  const Scratch scratch;
  const auto path = scratch / "out.txt";
  std::FILE* stream = std::fopen(path.c_str(), "w");
  ProgressLine sink(stream, 4, 10);
  for (int64_t step = 1; step <= 10; ++step) sink.write({.step = step, .seconds = 1});
  std::fclose(stream);
  std::vector<std::string> starts;
  std::istringstream lines(file::read(path));
  for (std::string line; std::getline(lines, line);) {
    EXPECT_THAT(line, testing::Not(testing::HasSubstr("\x1b")));
    starts.push_back(line.substr(0, line.find("  ")));
  }
  EXPECT_THAT(starts, testing::ElementsAre("step: 1", "step: 4", "step: 8", "step: 10"));
}

}  // namespace
}  // namespace hyperparallel::train
