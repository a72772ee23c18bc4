#include <fmt/format.h>

#include "arguments.h"
#include "inspect.h"
#include "train/trace_summary.h"

namespace hyperparallel {

int inspect_trace(const std::vector<std::string>& arguments) {
  CLI::App app("Show what the threads of a recorded trace were busy with, in percent of its time", "hyperparallel inspect trace");
  std::string path;
  app.add_option("FILE", path, "OUT/traces/trace-steps-*.json of a run; tasks are in it with profile.kernels")->required();
  app.footer(
      "matrix, vector, communication: tasks of mega kernels by kind; other: all other recorded work, such as segments of library "
      "operations; waiting: in a plan without a task, for other ranks, or nothing recorded. A trace is that of rank 0.");
  if (!parse_arguments(app, arguments)) return 0;
  const train::TraceSummary summary = train::summarise_trace(path);
  fmt::print("{:.3f} s\n{:<10} {:<20} {:>8} {:>8} {:>14} {:>8} {:>8}\n", summary.seconds, "process", "thread", "matrix", "vector",
             "communication", "other", "waiting");
  for (const train::ThreadShares& thread : summary.threads) {
    const auto percent = [&](double seconds) { return summary.seconds > 0 ? 100 * seconds / summary.seconds : 0; };
    fmt::print("{:<10} {:<20} {:>8.1f} {:>8.1f} {:>14.1f} {:>8.1f} {:>8.1f}\n", thread.process, thread.name,
               percent(thread.matrix), percent(thread.vector), percent(thread.communication), percent(thread.other),
               percent(thread.waiting));
  }
  return 0;
}

}  // namespace hyperparallel
