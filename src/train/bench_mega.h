// What the mega kernels gain, for `hyperparallel bench mega`.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "train/bench_model.h"

namespace hyperparallel::train {

struct BenchMegaOptions {
  int64_t tokens = 4096;  // of the row that each rank has
  at::ScalarType compute = at::kBFloat16;
  int repetitions = 5;  // after one run that warms up
};

struct Gain {
  double median = 0, least = 0, most = 0;  // percent more tokens a second, by repetitions
};
struct BenchMegaResult {
  int threads = 0, ranks = 1;
  int64_t tokens = 0;
  double off_seconds = 0, moe_seconds = 0, all_seconds = 0;  // medians
  Gain moe, all;
  double off_waited = 0, moe_waited = 0, all_waited = 0;  // percent of a step that the first rank waits for others, medians
};

// Forward and backward of a row of random tokens with library operations (off), with the experts as one plan (moe) and with
// experts, router and mHC so (all), all other kernels equal, in turn. Every rank calls it; experts lie over `ranks` as their
// layout says.
BenchMegaResult bench_mega(const models::ArchitecturePtr& architecture, const BenchMegaOptions& options, const Ranks& ranks);

nlohmann::ordered_json to_json(const BenchMegaResult& result);

}  // namespace hyperparallel::train
