#include "checkpoint/hf_names.h"

#include <charconv>

#include "base/error.h"

namespace hyperparallel::checkpoint {
namespace {

constexpr std::string_view kModel = "model.";
constexpr std::string_view kExperts = ".ffn.experts.";

bool is_backbone(std::string_view name) {  // without `model.`
  return name.starts_with("embed.") || name.starts_with("norm.") || name.starts_with("layers.");
}

bool is_matrix(std::string_view name) {
  return name == "w1.weight" || name == "w2.weight" || name == "w3.weight";
}

// Splits at the end of `.ffn.experts.`; npos where there is none.
size_t after_experts(const std::string& name) {
  size_t place = name.find(kExperts);
  return place == std::string::npos ? place : place + kExperts.size();
}

}  // namespace

std::string to_transformers(const std::string& file_name) {
  if (file_name == "head.weight") return "lm_head.weight";
  return is_backbone(file_name) ? std::string(kModel) + file_name : file_name;
}

std::string to_released(const std::string& transformers_name) {
  if (transformers_name == "lm_head.weight") return "head.weight";
  bool backbone = transformers_name.starts_with(kModel) && is_backbone(std::string_view(transformers_name).substr(kModel.size()));
  return backbone ? transformers_name.substr(kModel.size()) : transformers_name;
}

std::optional<ExpertName> parse_expert(const std::string& transformers_name) {
  size_t place = after_experts(transformers_name);
  if (place == std::string::npos) return std::nullopt;
  const char* end = transformers_name.data() + transformers_name.size();
  int64_t expert = 0;
  auto [rest, error] = std::from_chars(transformers_name.data() + place, end, expert);
  if (error != std::errc() || expert < 0 || rest == end || *rest != '.' || !is_matrix({rest + 1, end})) return std::nullopt;
  ExpertName parsed{transformers_name.substr(0, place) + std::string(rest + 1, end), expert};
  return expert_name(parsed.own, expert) == transformers_name ? std::optional(parsed) : std::nullopt;  // no `007`, no `-1`
}

bool is_stacked(const std::string& own_name) {
  size_t place = after_experts(own_name);
  return place != std::string::npos && is_matrix(std::string_view(own_name).substr(place));
}

std::string expert_name(const std::string& own_name, int64_t expert) {
  HP_CHECK(is_stacked(own_name), "`{}` is no stack of experts", own_name);
  std::string name = own_name;
  return name.insert(after_experts(own_name), fmt::format("{}.", expert));
}

bool is_draft(const std::string& name) {
  return name.starts_with("mtp.");
}

bool is_float32(const std::string& name) {
  for (std::string_view part : {".hc_attn_", ".hc_ffn_"}) {
    if (name.find(part) != std::string::npos) return true;
  }
  return name.ends_with(".attn_sink") || name.ends_with(".confidence_head.proj.weight") || name.ends_with(".gate.bias") ||
         name.ends_with(".gate.bias_vl");
}

}  // namespace hyperparallel::checkpoint
