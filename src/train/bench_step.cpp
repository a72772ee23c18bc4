#include "train/bench_step.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/random.h"
#include "engine/memory.h"
#include "engine/segment_clock.h"
#include "train/metrics.h"
#include "train/run_model.h"

namespace hyperparallel::train {
namespace {

// One document of random tokens, every position but the last scored.
data::MicroBatch random_batch(int64_t words, int64_t tokens) {
  const RandomStream random(1, "bench tokens");
  data::MicroBatch batch;
  batch.rows = 1;
  batch.seq_len = tokens;
  for (int64_t t = 0; t < tokens; ++t) {
    batch.input_ids.push_back(static_cast<int64_t>(random.below(static_cast<uint64_t>(t), static_cast<uint64_t>(words))));
    batch.position_ids.push_back(t);
  }
  batch.labels.assign(batch.input_ids.begin() + 1, batch.input_ids.end());
  batch.labels.push_back(data::kIgnoreLabel);
  batch.token_types.assign(tokens, -1);
  batch.padding.assign(tokens, 0);
  batch.cu_seqlens = {0, tokens};
  batch.supervised_tokens = tokens - 1;
  return batch;
}

// Of runs after a first one that is not timed; `warm` is called between them.
template <class Run, class Warm>
double median_seconds(int repetitions, const Run& run, const Warm& warm) {
  run();
  warm();
  std::vector<double> seconds;
  for (int i = 0; i < repetitions; ++i) {
    const double begin = monotonic_seconds();
    run();
    seconds.push_back(monotonic_seconds() - begin);
  }
  std::sort(seconds.begin(), seconds.end());
  return seconds[seconds.size() / 2];
}

}  // namespace

BenchStepResult bench_step(const models::ArchitecturePtr& architecture, const BenchStepOptions& options) {
  const auto run = build_run_model(architecture, options.program, options.compute, /*tokenizer=*/nullptr);
  engine::ParameterStore& parameters = *run->parameters;
  engine::Executor& executor = *run->executor;
  parameters.initialise(1);
  if (!options.recompute.offload.empty()) executor.offload_to(options.offload_folder);
  BenchStepResult result;
  result.threads = at::get_num_threads();
  result.peak_gflops = measure_peak_gflops();
  result.parameters = run->parameter_count();

  engine::ScheduleOptions schedule_options;
  schedule_options.recompute = options.recompute;
  const auto step = engine::build_schedule(run->program(), schedule_options);
  schedule_options.backward = false;
  const auto forward = engine::build_schedule(run->program(), schedule_options);
  for (const int64_t tokens : options.lengths) {
    const data::MicroBatch batch = random_batch(architecture->vocab_size(), tokens);
    const engine::ValueMap inputs = run->inputs(batch);
    BenchStepRow row;
    row.tokens = tokens;
    row.forward_seconds = median_seconds(options.repetitions, [&] { executor.run(forward, {inputs}, {}); }, [] {});
    engine::reset_peak_allocated_bytes();
    engine::SegmentTimes times;
    row.step_seconds = median_seconds(
        options.repetitions,
        [&] {
          executor.run(step, {inputs}, {{1.0 / static_cast<double>(batch.supervised_tokens)}});
          parameters.clear_gradients();
        },
        [&] { executor.add_observer(times); });
    executor.remove_observer(times);
    for (const auto& [kind, seconds] : times.seconds()) row.segments[kind] = seconds / options.repetitions;
    row.tokens_per_second = static_cast<double>(tokens) / row.step_seconds;
    row.mfu = architecture->needed_flops(batch) / row.step_seconds / (result.peak_gflops * 1e9);
    row.peak_allocated_bytes = engine::peak_allocated_bytes();
    row.peak_rss_bytes = memory_use().peak_rss_bytes;
    result.rows.push_back(row);
  }
  return result;
}

nlohmann::ordered_json to_json(const BenchStepResult& result) {
  nlohmann::ordered_json json{
      {"parameters", result.parameters}, {"threads", result.threads}, {"peak_gflops", result.peak_gflops}};
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
