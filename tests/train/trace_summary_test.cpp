#include "train/trace_summary.h"

#include "base/error.h"
#include "base/file.h"
#include "support/scratch.h"
#include "support/tensors.h"

namespace hyperparallel::train {
namespace {

using ::testing::HasSubstr;

TEST(TraceSummary, SharesAreTheOwnTimesOfSpans) {
  const Scratch folder;
  const auto path = folder / "trace.json";
  // A thread with a segment of 10 s, in it a plan of 8 s, in it tasks of 3 and 4 s; a worker with one task of 2 s.
  file::write(path, R"({"traceEvents": [
    {"ph": "M", "name": "thread_name", "pid": 1, "tid": 7, "args": {"name": "main"}},
    {"ph": "X", "name": "s", "cat": "segment", "pid": 1, "tid": 7, "ts": 0, "dur": 10e6},
    {"ph": "X", "name": "p", "cat": "plan", "pid": 1, "tid": 7, "ts": 1e6, "dur": 8e6},
    {"ph": "X", "name": "a", "cat": "matrix", "pid": 1, "tid": 7, "ts": 1e6, "dur": 3e6},
    {"ph": "X", "name": "b", "cat": "vector", "pid": 1, "tid": 7, "ts": 4e6, "dur": 4e6},
    {"ph": "X", "name": "c", "cat": "communication", "pid": 1, "tid": 8, "ts": 2e6, "dur": 2e6},
    {"ph": "C", "name": "memory", "pid": 1, "ts": 3, "args": {"x": 1}}]})");
  const TraceSummary summary = summarise_trace(path);
  EXPECT_NEAR(summary.seconds, 10, 1e-9);
  ASSERT_EQ(summary.threads.size(), 2);
  const ThreadShares &main = summary.threads[0], &worker = summary.threads[1];
  EXPECT_EQ(main.name, "main");
  EXPECT_NEAR(main.matrix, 3, 1e-9);
  EXPECT_NEAR(main.vector, 4, 1e-9);
  EXPECT_NEAR(main.other, 2, 1e-9);
  EXPECT_NEAR(main.waiting, 1, 1e-9);
  EXPECT_NEAR(worker.communication, 2, 1e-9);
  EXPECT_NEAR(worker.waiting, 8, 1e-9);
}

TEST(TraceSummary, AnotherFileIsRefused) {
  const Scratch folder;
  const auto message = [&](const std::string& content) -> std::string {
    const auto path = folder / "file.json";
    file::write(path, content);
    try {
      summarise_trace(path);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(message("{"), HasSubstr("is no JSON"));
  EXPECT_THAT(message("[]"), HasSubstr("no list traceEvents"));
  EXPECT_THAT(message(R"({"traceEvents": [{"ph": "X"}]})"), HasSubstr("an event without ph, pid"));
}

}  // namespace
}  // namespace hyperparallel::train
