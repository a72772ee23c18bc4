// The model of a fixture folder, ready to run: its configuration, weights and the program of the parts it has.
#pragma once

#include <filesystem>
#include <map>
#include <memory>
#include <string>

#include "checkpoint/safetensors.h"
#include "engine/executor.h"
#include "models/deepseek_v41/program.h"

namespace hyperparallel::train {

using TensorMap = std::map<std::string, at::Tensor>;

struct CaseModel {
  std::unique_ptr<models::deepseek_v41::ModelProgram> model;
  std::unique_ptr<engine::ParameterStore> parameters;
  std::unique_ptr<engine::Executor> executor;
};

// The program of the parts that the folder's configuration has. Throws ConfigError for one that cannot be read, and where the
// layout of `options` does not fit it.
models::deepseek_v41::ModelProgram build_case_program(const std::filesystem::path& folder,
                                                      const models::deepseek_v41::ProgramOptions& options);

// `compute`: FP32, FP64 or BF16; masters are FP64 for FP64 and FP32 otherwise. `groups`: of the layout of `options`. Throws as
// build_case_program, and CheckpointError for a weight that is missing, unknown or of another shape.
CaseModel load_case_model(const std::filesystem::path& folder, at::ScalarType compute,
                          const models::deepseek_v41::ProgramOptions& options,
                          const dist::Groups& groups = dist::one_rank_groups());

// A parameter's tensors as files name them: stacked experts one by one, the rest as it is. Views of `tensor`, which has the shape
// of the whole parameter.
std::vector<checkpoint::NamedTensor> released_tensors(const engine::ParameterSpec& spec, const at::Tensor& tensor);

// Copies the owned parts of tensors with released names into the masters. Throws CheckpointError as above; `engram.embed.scale`
// and `mtp.*` are ignored.
void load_released_weights(engine::ParameterStore& parameters, const TensorMap& tensors, const std::string& origin);

// A tensor of case.safetensors. Throws CheckpointError when it is missing.
const at::Tensor& case_tensor(const TensorMap& tensors, const std::string& name);

// What the tensors of a case give the model; patches alone for a vision tower. `prefix` is that of a step's micro-batch, or
// empty. Throws CheckpointError for what is missing.
models::deepseek_v41::ModelBatch batch_of_case(const TensorMap& tensors, const std::string& prefix,
                                               const models::deepseek_v41::ModelConfig& config, at::ScalarType compute);
// The hashes of that batch, from the case's own `token_map`.
models::deepseek_v41::EngramLookup engram_lookup_of_case(const TensorMap& tensors,
                                                         const models::deepseek_v41::ModelConfig& config,
                                                         const models::deepseek_v41::ModelBatch& batch);

}  // namespace hyperparallel::train
