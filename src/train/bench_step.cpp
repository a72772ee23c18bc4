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

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

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
  return median_of(std::move(seconds));
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
  result.compute_gflops = options.compute == at::kFloat ? result.peak_gflops : measure_peak_gflops(options.compute);
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

namespace {

// A model with its parameters that runs the same step again and again.
class Stepper {
 public:
  Stepper(const models::ArchitecturePtr& architecture, const BenchStepOptions& options, const models::KernelLimits& kernels)
      : batch_(random_batch(architecture->vocab_size(), options.lengths.at(0))) {
    models::ProgramOptions program = options.program;
    program.kernels = kernels;
    run_ = build_run_model(architecture, program, options.compute, /*tokenizer=*/nullptr);
    run_->parameters->initialise(1);
    engine::ScheduleOptions schedule;
    schedule.recompute = options.recompute;
    schedule_ = engine::build_schedule(run_->program(), schedule);
    inputs_ = run_->inputs(batch_);
  }
  double seconds() {
    const double begin = monotonic_seconds();
    run_->executor->run(schedule_, {inputs_}, {{1.0 / static_cast<double>(batch_.supervised_tokens)}});
    run_->parameters->clear_gradients();
    return monotonic_seconds() - begin;
  }

 private:
  data::MicroBatch batch_;
  std::unique_ptr<RunModel> run_;
  std::vector<engine::Action> schedule_;
  engine::ValueMap inputs_;
};

Gain gain_of(const std::vector<double>& off, const std::vector<double>& on) {
  std::vector<double> percent;
  for (size_t i = 0; i < off.size(); ++i) percent.push_back(100 * (off[i] / on[i] - 1));
  return {median_of(percent), *std::ranges::min_element(percent), *std::ranges::max_element(percent)};
}

}  // namespace

BenchMegaResult bench_mega(const models::ArchitecturePtr& architecture, const BenchStepOptions& options) {
  using kernels::Implementation;
  models::KernelLimits off = options.program.kernels;
  off.gate = off.moe = Implementation::kReference, off.mhc = Implementation::kFused;
  models::KernelLimits moe = off, all;
  moe.moe = Implementation::kMega;
  all = moe;
  all.gate = all.mhc = Implementation::kMega;
  std::vector<Stepper> steppers;
  for (const models::KernelLimits& limits : {off, moe, all}) steppers.emplace_back(architecture, options, limits);
  for (Stepper& stepper : steppers) stepper.seconds();
  std::vector<std::vector<double>> seconds(steppers.size());
  for (int i = 0; i < options.repetitions; ++i)
    for (size_t which = 0; which < steppers.size(); ++which) seconds[which].push_back(steppers[which].seconds());
  return {at::get_num_threads(), options.lengths.at(0),           median_of(seconds[0]),          median_of(seconds[1]),
          median_of(seconds[2]), gain_of(seconds[0], seconds[1]), gain_of(seconds[0], seconds[2])};
}

nlohmann::ordered_json to_json(const BenchMegaResult& result) {
  const auto spread = [](const Gain& gain) { return nlohmann::ordered_json{gain.least, gain.most}; };
  return {{"threads", result.threads},
          {"tokens", result.tokens},
          {"seconds.off", result.off_seconds},
          {"seconds.moe", result.moe_seconds},
          {"seconds.all", result.all_seconds},
          {"gain.moe", result.moe.median},
          {"gain.moe.spread", spread(result.moe)},
          {"gain.all", result.all.median},
          {"gain.all.spread", spread(result.all)}};
}

}  // namespace hyperparallel::train
