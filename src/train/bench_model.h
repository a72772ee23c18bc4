// A model with random weights that runs steps on random tokens, without pictures: what the benchmarks time.
#pragma once

#include "base/aten.h"

#include <memory>
#include <vector>

#include "data/batch.h"
#include "train/run_model.h"

namespace hyperparallel::train {

// Of at least one; the upper one of two in the middle.
double median_of(std::vector<double> values);

// One document of random tokens, every position but the last scored: the one of a data-parallel rank, of so many.
data::MicroBatch random_batch(int64_t words, int64_t tokens, int rank = 0, int ranks = 1);

class BenchModel {
 public:
  // Every rank builds its own. `options.layout` is that of `ranks`.
  BenchModel(const models::ArchitecturePtr& architecture, const models::ProgramOptions& options, at::ScalarType compute,
             const engine::RecomputePolicy& recompute, const Ranks& ranks = one_rank());

  RunModel& run() { return *run_; }
  // Forward and backward, from when all ranks begin until all have ended. Every rank calls it.
  double step_seconds(const data::MicroBatch& batch, const engine::ValueMap& inputs);
  // For how many seconds of the last step this rank waited for others.
  double waited_seconds() const;

 private:
  Ranks ranks_;
  std::unique_ptr<RunModel> run_;
  std::vector<engine::Action> step_;
};

}  // namespace hyperparallel::train
