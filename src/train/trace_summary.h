// What the threads of a recorded trace (base/trace.h) were busy with, for `hyperparallel inspect trace`.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace hyperparallel::train {

struct ThreadShares {
  std::string name;
  int64_t process = 0;
  // Seconds, together those of the trace. Tasks of plans by their kind (runtime/plan.h), then all other recorded work; waiting is
  // time in a plan without a task, for other ranks, or with nothing recorded.
  double matrix = 0, vector = 0, communication = 0, other = 0, waiting = 0;
};

struct TraceSummary {
  double seconds = 0;  // from the first span's begin to the last one's end
  std::vector<ThreadShares> threads;
};

// Throws UsageError for a file that is no such trace.
TraceSummary summarise_trace(const std::filesystem::path& path);

}  // namespace hyperparallel::train
