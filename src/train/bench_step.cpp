#include "train/bench_step.h"

#include <ATen/Parallel.h>

#include <nlohmann/json.hpp>

#include "engine/memory.h"
#include "engine/segment_clock.h"
#include "train/bench_model.h"
#include "train/metrics.h"

namespace hyperparallel::train {

BenchStepResult bench_step(const models::ArchitecturePtr& architecture, const BenchStepOptions& options) {
  BenchModel model(architecture, options.program, options.compute, options.recompute);
  engine::Executor& executor = *model.run().executor;
  if (!options.recompute.offload.empty()) executor.offload_to(options.offload_folder);
  BenchStepResult result;
  result.threads = at::get_num_threads();
  result.peak_gflops = measure_peak_gflops();
  result.compute_gflops = options.compute == at::kFloat ? result.peak_gflops : measure_peak_gflops(options.compute);
  result.parameters = model.run().parameter_count();
  for (const int64_t tokens : options.lengths) {
    const data::MicroBatch batch = random_batch(architecture->vocab_size(), tokens);
    const engine::ValueMap inputs = model.run().inputs(batch);
    BenchStepRow row;
    row.tokens = tokens;
    engine::reset_peak_allocated_bytes();
    if (options.warms_up) model.step_seconds(batch, inputs);
    engine::SegmentTimes times;
    executor.add_observer(times);
    std::vector<double> seconds;
    for (int i = 0; i < options.repetitions; ++i) seconds.push_back(model.step_seconds(batch, inputs));
    executor.remove_observer(times);
    row.step_seconds = median_of(std::move(seconds));
    for (const auto& [kind, of_kind] : times.seconds()) {
      row.segments[kind] = of_kind / options.repetitions;
      if (kind.starts_with("forward ")) row.forward_seconds += row.segments[kind];
    }
    row.tokens_per_second = static_cast<double>(tokens) / row.step_seconds;
    row.mfu = architecture->needed_flops(batch) / row.step_seconds / (result.peak_gflops * 1e9);
    row.peak_allocated_bytes = engine::peak_allocated_bytes();
    row.peak_rss_bytes = memory_use().peak_rss_bytes;
    result.rows.push_back(row);
  }
  return result;
}

nlohmann::ordered_json to_json(const BenchStepResult& result) {
  nlohmann::ordered_json json{{"parameters", result.parameters},
                              {"threads", result.threads},
                              {"peak_gflops", result.peak_gflops},
                              {"compute_gflops", result.compute_gflops}};
  for (const BenchStepRow& row : result.rows) {
    json["rows"].push_back({{"tokens", row.tokens},
                            {"forward_seconds", row.forward_seconds},
                            {"step_seconds", row.step_seconds},
                            {"tokens_per_second", row.tokens_per_second},
                            {"mfu", row.mfu},
                            {"peak_allocated_bytes", row.peak_allocated_bytes},
                            {"peak_rss_bytes", row.peak_rss_bytes},
                            {"segments", row.segments}});
  }
  return json;
}

}  // namespace hyperparallel::train
