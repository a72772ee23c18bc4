#include "checkpoint/convert.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"

namespace hyperparallel::checkpoint {
namespace {

bool is_parameter(const std::string& name) {
  return name.find('/') == std::string::npos;
}

// The configuration of what is exported: its dtype, and draft layers only where the checkpoint holds them.
std::string exported_config(const std::string& text, at::ScalarType type, bool has_drafts, const std::filesystem::path& path) {
  auto config = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) throw CheckpointError("{}: is no JSON object", path.string());
  const char* dtype = type == at::kBFloat16 ? "bfloat16" : "float32";
  config["dtype"] = dtype;
  for (auto& [key, part] : config.items()) {  // text_config, vision_config may state their own
    if (part.is_object() && part.contains("dtype")) part["dtype"] = dtype;
    if (part.is_object()) part.erase("torch_dtype");
  }
  config.erase("torch_dtype");  // the same key as older tools spell it
  auto& model = config.contains("text_config") ? config["text_config"] : config;
  if (!model.is_object()) throw CheckpointError("{}: text_config is no JSON object", path.string());
  if (has_drafts) return config.dump(2) + "\n";
  if (model.contains("num_nextn_predict_layers")) model["num_nextn_predict_layers"] = 0;
  const auto layers = model.find("num_hidden_layers"), ratios = model.find("compress_ratios");
  if (layers != model.end() && layers->is_number_unsigned() && ratios != model.end() && ratios->is_array()) {
    const auto count = layers->get<size_t>();
    if (ratios->size() > count) ratios->erase(ratios->begin() + static_cast<std::ptrdiff_t>(count), ratios->end());
  }
  return config.dump(2) + "\n";
}

TensorSpec exported(const std::string& name, const StoredTensor& tensor, at::ScalarType wanted) {
  at::ScalarType type = scalar_type_of(tensor.dtype);
  if (at::isFloatingType(type)) type = is_float32(name) ? at::kFloat : wanted;
  return {name, type, tensor.shape};
}

}  // namespace

std::map<std::string, std::string> read_companions(const std::filesystem::path& folder) {
  std::map<std::string, std::string> companions;
  for (const char* name : kHfCompanions) {
    if (std::filesystem::exists(folder / name)) companions[name] = file::read(folder / name);
  }
  return companions;
}

void import_hf(const HfFolder& source, CheckpointStore& target) {
  Save save;
  std::string wrong;
  for (const auto& [name, spec] : source.tensors()) {
    if (name == "lm_head.weight" && source.tied()) continue;  // it is the embedding
    const at::Tensor tensor = source.load(name);
    if (const int64_t count = tensor.numel() - tensor.isfinite().sum().item<int64_t>(); count > 0)
      wrong += fmt::format("\n  {}: {} of {}", name, count, tensor.numel());
    save.pieces.push_back({name, spec.shape, std::vector<int64_t>(spec.shape.size(), 0), tensor});
  }
  if (!wrong.empty()) throw CheckpointError("{}: weights hold values that are not finite:{}", source.folder().string(), wrong);
  save.documents = read_companions(source.folder());
  save.documents[kModelConfigDocument] = source.config();
  target.save(save);
}

void export_checkpoint(const Checkpoint& source, const std::filesystem::path& folder, const ExportOptions& options) {
  HP_CHECK(options.type == at::kBFloat16 || options.type == at::kFloat, "export as {}", at::toString(options.type));
  if (!source.has_document(kModelConfigDocument))
    throw CheckpointError("{}: holds no {}, so it cannot be exported", source.folder().string(), kModelConfigDocument);
  HfExport request;
  for (const auto& [name, tensor] : source.tensors()) {
    if (is_parameter(name)) request.tensors.push_back(exported(name, tensor, options.type));
  }
  request.load = [&](const std::string& name, const auto& offset, const auto& size) {
    return source.load_box(name, offset, size);
  };
  const bool has_drafts = std::ranges::any_of(source.tensors(), [](const auto& tensor) { return is_draft(tensor.first); });
  request.config =
      exported_config(source.document(kModelConfigDocument), options.type, has_drafts, source.folder() / kModelConfigDocument);
  request.companions = options.companions;
  for (const char* name : kHfCompanions) {
    if (source.has_document(name)) request.companions.emplace(name, source.document(name));
  }
  request.spelling = options.spelling;
  request.max_shard_bytes = options.max_shard_bytes;
  export_hf(folder, request);
}

}  // namespace hyperparallel::checkpoint
