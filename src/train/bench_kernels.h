// Speed of single kernels, for `hyperparallel bench kernels`.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "models/adapter/family.h"

namespace hyperparallel::train {

struct KernelTimes {
  std::string operation, shape;
  double ours_seconds = 0, library_seconds = 0;  // medians
  double limit_seconds = 0;  // the least that products at the measured rate, or bytes at that of copying, take
  bool limited_by_memory = false;
};
struct BenchKernelsResult {
  int threads = 0;
  int64_t tokens = 0;
  double compute_gflops = 0;  // at::mm, 2048^3, in the type of computation
  double copy_gbytes = 0;     // a second, read and written ones both counted
  std::vector<KernelTimes> kernels;
  std::vector<std::string> too_large;  // what memory does not hold, with what it takes
};

// Every operation of the architecture that has kernels of our own, forward and backward, in turn with library operations; medians
// of `repetitions` after one that is not timed. Throws UsageError for a family without such.
BenchKernelsResult bench_kernels(const models::ArchitecturePtr& architecture, int64_t tokens, at::ScalarType compute,
                                 int repetitions);

nlohmann::ordered_json to_json(const BenchKernelsResult& result);

}  // namespace hyperparallel::train
