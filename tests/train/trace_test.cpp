#include "train/trace.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "base/file.h"
#include "base/trace.h"
#include "support/scratch.h"

namespace hyperparallel::train {
namespace {

void run_step(TraceWindow& window, int64_t step) {
  window.before_step(step);
  { trace::Scope scope("step " + std::to_string(step), "segment"); }
  window.after_step(step);
}

std::vector<std::string> span_names(const std::filesystem::path& path) {
  std::vector<std::string> names;
  const nlohmann::json trace = nlohmann::json::parse(file::read(path));
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("ph") == "X") names.push_back(event.at("name"));
  }
  return names;
}

TEST(TraceWindow, RecordsTheConfiguredSteps) {
  const Scratch scratch;
  TraceWindow window(scratch / "traces", 3, 2);
  for (int64_t step = 1; step <= 6; ++step) run_step(window, step);
  EXPECT_THAT(span_names(scratch / "traces/trace-steps-3-4.json"), testing::ElementsAre("step 3", "step 4"));
}

TEST(TraceWindow, RunThatEndsEarlyStillWritesItsTrace) {
  const Scratch scratch;
  {
    TraceWindow window(scratch.path(), 2, 10);
    for (int64_t step = 1; step <= 3; ++step) run_step(window, step);
  }
  EXPECT_THAT(span_names(scratch / "trace-steps-2-3.json"), testing::ElementsAre("step 2", "step 3"));
}

TEST(TraceWindow, NoStepsMeansNoTrace) {
  const Scratch scratch;
  TraceWindow window(scratch.path(), 1, 0);
  run_step(window, 1);
  EXPECT_TRUE(std::filesystem::is_empty(scratch.path()));
}

}  // namespace
}  // namespace hyperparallel::train
