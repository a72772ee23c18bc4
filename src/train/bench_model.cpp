#include "train/bench_model.h"

#include <algorithm>

#include "base/clock.h"
#include "base/random.h"

namespace hyperparallel::train {

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

data::MicroBatch random_batch(int64_t words, int64_t tokens, int rank, int ranks) {
  const RandomStream random(1 + static_cast<uint64_t>(rank), "bench tokens");
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
  batch.outlines.assign(ranks, {tokens, {}});
  return batch;
}

BenchModel::BenchModel(const models::ArchitecturePtr& architecture, const models::ProgramOptions& options, at::ScalarType compute,
                       const engine::RecomputePolicy& recompute, const Ranks& ranks)
    : ranks_(ranks) {
  run_ = build_run_model(architecture, options, compute, /*tokenizer=*/nullptr, ranks.groups);
  run_->parameters->initialise(1);
  engine::ScheduleOptions schedule;
  schedule.recompute = recompute;
  for (const auto& [axis, group] : ranks.groups) schedule.axis_sizes[axis] = group->size();
  step_ = engine::build_schedule(run_->program(), schedule);
}

double BenchModel::step_seconds(const data::MicroBatch& batch, const engine::ValueMap& inputs) {
  run_->executor->wait_clock().clear();
  const auto meet = [&](const char* label) {
    if (ranks_.world != nullptr) ranks_.group("world").barrier(label);
  };
  meet("begin");
  const double begin = monotonic_seconds();
  run_->executor->run(step_, {inputs}, {{1.0 / static_cast<double>(batch.supervised_tokens)}});
  run_->parameters->clear_gradients();
  meet("end");
  return monotonic_seconds() - begin;
}

double BenchModel::waited_seconds() const {
  double sum = 0;
  for (const auto& [axis, seconds] : run_->executor->wait_clock().seconds()) sum += seconds;
  return sum;
}

}  // namespace hyperparallel::train
