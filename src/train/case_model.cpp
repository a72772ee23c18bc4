#include "train/case_model.h"

#include <set>

#include "base/error.h"
#include "checkpoint/hf_names.h"
#include "models/deepseek_v41/adapter.h"
#include "models/families/families.h"

namespace hyperparallel::train {

using models::deepseek_v41::ModelBatch;
using models::deepseek_v41::ModelConfig;

std::vector<checkpoint::NamedTensor> released_tensors(const engine::ParameterSpec& spec, const at::Tensor& tensor) {
  if (!checkpoint::is_stacked(spec.name)) return {{spec.name, tensor}};
  std::vector<checkpoint::NamedTensor> tensors;
  for (int64_t expert = 0; expert < tensor.size(0); ++expert)
    tensors.emplace_back(checkpoint::expert_name(spec.name, expert), tensor[expert]);
  return tensors;
}

void load_released_weights(engine::ParameterStore& parameters, const TensorMap& tensors, const std::string& origin) {
  std::set<std::string> used;
  for (const engine::ParameterSpec& spec : parameters.specs()) {
    const engine::ParameterId id = parameters.find(spec.name);
    const at::Tensor whole = at::empty(spec.shape, at::TensorOptions().dtype(parameters.master_type()));
    for (const auto& [name, slot] : released_tensors(spec, whole)) {
      auto it = tensors.find(name);
      if (it == tensors.end()) throw CheckpointError("{}: the weight {} is missing", origin, name);
      if (it->second.sizes() != slot.sizes()) {
        throw CheckpointError("{}: {} has shape [{}], the configuration asks for [{}]", origin, name,
                              fmt::join(it->second.sizes().vec(), ", "), fmt::join(slot.sizes().vec(), ", "));
      }
      at::Tensor(slot).copy_(it->second);
      used.insert(name);
    }
    const at::Tensor owned = engine::narrow_to(whole, parameters.placement(id).owned);
    parameters.set_master(id,
                          [&](int64_t offset, int64_t size) { return owned.dim() == 0 ? owned : owned.narrow(0, offset, size); });
  }
  for (const auto& [name, tensor] : tensors) {
    const bool ignored = name.ends_with("engram.embed.scale") || name.starts_with("mtp.");
    if (!used.contains(name) && !ignored)
      throw CheckpointError("{}: the configuration has no place for the weight {}", origin, name);
  }
  parameters.masters_changed();
}

models::deepseek_v41::ModelProgram build_case_program(const std::filesystem::path& folder,
                                                      const models::deepseek_v41::ProgramOptions& options) {
  const auto architecture = models::read_architecture((folder / "config.json").string(), {.allow_vision_only = true});
  require(*architecture, models::Ability::kGoldenCases, "`verify`");
  const ModelConfig& config = models::deepseek_v41::config_of(*architecture);
  return config.text.num_hidden_layers > 0 ? build_program(config, options) : build_vision_program(config, options);
}

CaseModel load_case_model(const std::filesystem::path& folder, at::ScalarType compute,
                          const models::deepseek_v41::ProgramOptions& options, const dist::Groups& groups) {
  const TensorMap weights = checkpoint::read_all(folder / "weights.safetensors");
  CaseModel result;
  result.model = std::make_unique<models::deepseek_v41::ModelProgram>(build_case_program(folder, options));
  const at::ScalarType master = compute == at::kDouble ? at::kDouble : at::kFloat;
  result.parameters = std::make_unique<engine::ParameterStore>(result.model->program.parameters, master, compute, options.layout);
  load_released_weights(*result.parameters, weights, (folder / "weights.safetensors").string());
  result.executor = std::make_unique<engine::Executor>(result.model->program, *result.parameters, groups);
  return result;
}

const at::Tensor& case_tensor(const TensorMap& tensors, const std::string& name) {
  auto it = tensors.find(name);
  if (it == tensors.end()) throw CheckpointError("case.safetensors: the tensor {} is missing", name);
  return it->second;
}

namespace {

// Row border of the batch, or the documents of a packed row.
at::Tensor documents_of(const TensorMap& tensors, const std::string& prefix, const at::Tensor& ids) {
  if (auto it = tensors.find(prefix + "cu_seqlens"); it != tensors.end()) return it->second.to(at::kLong);
  return at::arange(0, ids.numel() + 1, ids.size(1), at::kLong);
}

}  // namespace

ModelBatch batch_of_case(const TensorMap& tensors, const std::string& prefix, const ModelConfig& config, at::ScalarType compute) {
  ModelBatch batch;
  if (auto patches = tensors.find(prefix + "patches"); patches != tensors.end()) {
    batch.patches = patches->second.flatten(1).to(compute);
    batch.grids = case_tensor(tensors, prefix + "grids");
  }
  if (config.text.num_hidden_layers == 0) {
    case_tensor(tensors, prefix + "patches");
    return batch;
  }
  const at::Tensor& ids = case_tensor(tensors, prefix + "input_ids");
  if (ids.dim() != 2)
    throw CheckpointError("case.safetensors: {}input_ids has {} dimensions, not rows and positions", prefix, ids.dim());
  if (ids.lt(0).logical_or(ids.ge(config.text.vocab_size)).any().item<bool>()) {
    throw CheckpointError("case.safetensors: {}input_ids has ids from {} to {}; the vocabulary has {}", prefix,
                          ids.min().item<int64_t>(), ids.max().item<int64_t>(), config.text.vocab_size);
  }
  const int64_t tokens = ids.numel(), width = ids.size(1);
  batch.ids = ids.flatten();
  auto targets = tensors.find(prefix + "shift_labels");
  batch.targets = targets != tensors.end() ? targets->second.flatten() : at::full({tokens}, -100, at::kLong);
  batch.cu_seqlens = documents_of(tensors, prefix, ids);
  auto image = tensors.find(prefix + "image_mask");
  auto types = tensors.find(prefix + "token_types");
  batch.image_mask = image != tensors.end()   ? image->second.flatten().to(at::kBool)
                     : types != tensors.end() ? types->second.flatten().ge(0)
                                              : at::zeros({tokens}, at::kBool);
  batch.padding = at::zeros({tokens}, at::kBool);
  if (batch.patches.defined()) {
    auto starts = tensors.find(prefix + "image_starts");
    batch.image_starts = starts != tensors.end()
                             ? starts->second.select(1, 0) * width + starts->second.select(1, 1)
                             : case_tensor(tensors, prefix + "token_types").flatten().eq(0).nonzero().flatten();
  } else if (config.vision) {
    const int64_t pixels = 3 * config.vision->patch_size * config.vision->patch_size;
    batch.patches = at::empty({0, pixels}, at::TensorOptions().dtype(compute));
    batch.grids = at::empty({0, 2}, at::kLong);
    batch.image_starts = at::empty({0}, at::kLong);
  }
  if (!config.text.engram_layer_ids.empty()) batch.engram_rows = engram_lookup_of_case(tensors, config, batch).rows;
  return batch;
}

models::deepseek_v41::EngramLookup engram_lookup_of_case(const TensorMap& tensors, const ModelConfig& config,
                                                         const ModelBatch& batch) {
  const at::Tensor map = case_tensor(tensors, "token_map").to(at::kInt).contiguous();
  const models::deepseek_v41::EngramHasher hasher(config.text,
                                                  {map.const_data_ptr<int32_t>(), map.const_data_ptr<int32_t>() + map.numel()});
  return models::deepseek_v41::hash_tokens(hasher, batch.ids, batch.image_mask, batch.cu_seqlens);
}

}  // namespace hyperparallel::train
