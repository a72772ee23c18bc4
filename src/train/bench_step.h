// Speed and memory of forward and backward of one random packed row, for `hyperparallel bench`.
#pragma once

#include "base/aten.h"

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "engine/schedule.h"
#include "models/adapter/family.h"

namespace hyperparallel::train {

struct BenchStepOptions {
  std::vector<int64_t> lengths = {512};  // tokens of the row
  at::ScalarType compute = at::kFloat;
  engine::RecomputePolicy recompute;
  std::string offload_folder = ".";  // where recompute.offload keeps its file
  models::ProgramOptions program;
  int repetitions = 3;  // of which the median counts
  bool warms_up = true;  // by a run before them
};

struct BenchStepRow {
  int64_t tokens = 0;
  double forward_seconds = 0;  // in segments, mean
  double step_seconds = 0;  // forward and backward, no optimizer
  double tokens_per_second = 0;
  double mfu = 0;  // NOTE [MFU] in metrics.h
  int64_t peak_allocated_bytes = 0;
  int64_t peak_rss_bytes = 0;              // of the process so far
  std::map<std::string, double> segments;  // seconds of a step, mean, by kind (engine::SegmentTimes)
};

struct BenchStepResult {
  int64_t parameters = 0;
  int threads = 0;
  double peak_gflops = 0;     // FP32 at::mm, 2048^3, measured in this run
  double compute_gflops = 0;  // the same in the type of computation
  std::vector<BenchStepRow> rows;
};

// Runs a model with random weights on random tokens, without pictures.
BenchStepResult bench_step(const models::ArchitecturePtr& architecture, const BenchStepOptions& options);

nlohmann::ordered_json to_json(const BenchStepResult& result);

}  // namespace hyperparallel::train
