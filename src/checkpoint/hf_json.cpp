#include "checkpoint/hf_json.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"

namespace hyperparallel::checkpoint {
namespace {

using nlohmann::json;

json parse_object(const std::string& text, const std::filesystem::path& path) {
  json value = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!value.is_object()) throw CheckpointError("{}: is no JSON object", path.string());
  return value;
}

}  // namespace

bool ties_embeddings(const std::string& config, const std::filesystem::path& path) {
  const json value = parse_object(config, path);
  auto tie = [&](const json& object) -> const json* {
    auto found = object.find("tie_word_embeddings");
    return found == object.end() || found->is_null() ? nullptr : &*found;
  };
  const json* found = value.contains("text_config") && value["text_config"].is_object() ? tie(value["text_config"]) : nullptr;
  if (!found) found = tie(value);
  if (!found) return false;
  if (!found->is_boolean())
    throw CheckpointError("{}: tie_word_embeddings is {}; true and false are accepted", path.string(), found->dump());
  return found->get<bool>();
}

std::map<std::string, std::string> read_weight_map(const std::filesystem::path& index) {
  const json value = parse_object(file::read(index), index);
  auto map = value.find("weight_map");
  if (map == value.end() || !map->is_object()) throw CheckpointError("{}: has no weight_map", index.string());
  std::map<std::string, std::string> weight_map;
  for (const auto& [name, file] : map->items()) {
    if (!file.is_string()) throw CheckpointError("{}: tensor `{}`: the file is no string", index.string(), name);
    const auto& plain = file.get_ref<const std::string&>();
    if (plain.empty() || plain[0] == '.' || plain.find('/') != std::string::npos)
      throw CheckpointError("{}: tensor `{}`: `{}` is no plain file name", index.string(), name, plain);
    weight_map[name] = plain;
  }
  return weight_map;
}

std::string index_text(const std::map<std::string, std::string>& weight_map, int64_t total_bytes, int64_t total_parameters) {
  nlohmann::ordered_json index;
  index["metadata"] = {{"total_parameters", total_parameters}, {"total_size", total_bytes}};
  index["weight_map"] = weight_map;
  return index.dump(2) + "\n";
}

}  // namespace hyperparallel::checkpoint
