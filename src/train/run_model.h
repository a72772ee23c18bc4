// The model of a run: program, parameters and executor of a configuration, and the way from the loader's batches to its inputs.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/hf_folder.h"
#include "data/batch.h"
#include "data/loader.h"
#include "data/tokenizer.h"
#include "engine/executor.h"
#include "models/adapter/family.h"
#include "train/config.h"
#include "train/ranks.h"

namespace hyperparallel::train {

struct RunModel {
  models::ArchitecturePtr architecture;
  models::ProgramOptions options;
  std::unique_ptr<models::Model> model;
  std::unique_ptr<engine::ParameterStore> parameters;
  std::unique_ptr<engine::Executor> executor;

  const engine::Program& program() const { return model->program(); }
  at::ScalarType compute_type() const { return parameters->compute_type(); }
  // Throws DataError for a picture that the model cannot take.
  engine::ValueMap inputs(const data::MicroBatch& batch) const;
  // Elements of all parameters, router biases included.
  int64_t parameter_count() const;
};

// Builds the rank's program and allocates its parameters (zeros, masters in FP32, for FP64 computation in FP64). Throws
// ConfigError, naming both numbers, where tokenizer and model disagree, or model and layout.
std::unique_ptr<RunModel> build_run_model(const Config& config, const data::Tokenizer& tokenizer,
                                          const Ranks& ranks = one_rank());
// The same of a model alone. `tokenizer`: see Architecture::build.
std::unique_ptr<RunModel> build_run_model(models::ArchitecturePtr architecture, const models::ProgramOptions& options,
                                          at::ScalarType compute, const data::Tokenizer* tokenizer,
                                          const dist::Groups& groups = dist::one_rank_groups());

// Sets libtorch's threads, determinism, allocator and that denormal numbers are zeros for this process, from `train.threads` (0: the hardware threads that fall to
// this rank) and `train.deterministic`. Call first.
void set_up_libtorch(const TrainSection& train, const dist::World* world = nullptr);

// What the `kernels` section says, into options.
void choose_kernels(const KernelsSection& kernels, models::ProgramOptions& options);
models::ProgramOptions program_options(const Config& config, const engine::Layout& layout);
at::ScalarType scalar_type(Dtype dtype);  // of computation
engine::RecomputePolicy recompute_policy(const RecomputeSection& recompute);
// Throws ConfigError for globs of the recompute policy that match nothing.
std::vector<engine::Action> make_schedule(const engine::Program& program, const engine::ScheduleOptions& options);

// The loader of one split for this rank. `repeat`: training; otherwise one pass in file order.
data::LoaderOptions loader_options(const Config& config, const std::vector<DataSource>& files, bool repeat,
                                   const Ranks& ranks = one_rank());
data::SampleOptions sample_options(const Config& config);

// Loads the owned rows of all parameters by name, from a checkpoint of ours or a Hugging Face folder. Throws CheckpointError for
// a missing tensor or another shape. Those of draft layers may be missing: they stay as they are, and their number is returned.
int64_t load_parameters(engine::ParameterStore& parameters, const checkpoint::Checkpoint& checkpoint);
int64_t load_parameters(engine::ParameterStore& parameters, const checkpoint::HfFolder& folder);

}  // namespace hyperparallel::train
