// The keys of config.json in words, for the documentation.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "models/deepseek_v41/config.h"
#include "models/deepseek_v41/config_keys.h"

namespace hyperparallel::models::deepseek_v41 {
namespace {

std::string type_of(int64_t) {
  return "whole number";
}
std::string type_of(double) {
  return "number";
}
std::string type_of(const std::optional<double>&) {
  return "null or number";
}
std::string type_of(const std::vector<int64_t>&) {
  return "list of whole numbers";
}

std::string text_of(int64_t value) {
  return fmt::format("{}", value);
}
std::string text_of(double value) {
  return fmt::format("{}", value);
}
std::string text_of(bool value) {
  return value ? "true" : "false";
}
std::string text_of(const std::string& value) {
  return value;
}
std::string text_of(const std::optional<double>& value) {
  return value ? text_of(*value) : "null";
}
std::string text_of(const std::vector<int64_t>&) {
  return "[]";
}

// Visits the key lists of config_keys.h.
struct DescribeVisitor {
  std::string part;
  std::vector<KeyDescription>& keys;

  template <class T>
  void required(const char* key, const T& field, const yaml::Range& range) {
    optional(key, field, range);
    keys.back().default_value = "required";
  }
  template <class T>
  void optional(const char* key, const T& field, const yaml::Range& range) {
    keys.push_back({part, key, fmt::format("{} {}", type_of(field), range.describe()), text_of(field)});
  }
  void optional(const char* key, bool field) { keys.push_back({part, key, "true or false", text_of(field)}); }
  template <class T>
  void fixed(const char* key, const T& only) {
    keys.push_back({part, key, fmt::format("{} alone", text_of(only)), text_of(only)});
  }
};

}  // namespace

std::vector<KeyDescription> describe_keys() {
  std::vector<KeyDescription> keys;
  keys.push_back({"root", "dtype", "float32, bfloat16", "float32"});
  keys.push_back({"root", "image_token_id", "whole number at least 0", "required beside vision_config"});
  DescribeVisitor text{"text_config", keys};
  visit_text(text, TextConfig());
  visit_draft(text, DraftConfig());
  keys.push_back({"text_config", "candidate_source_layer_id", "the last KV source, or -1 for no pool", "the last KV source"});
  visit_shared(text, TextConfig());
  keys.push_back({"text_config", "rope_theta", "number above 0", "10000"});
  keys.push_back({"text_config", "compress_rope_theta", "number above 0", "160000"});
  keys.push_back({"text_config", "rope_scaling",
                  "null, or rope_type yarn with factor, beta_fast, beta_slow, original_max_position_embeddings", "null"});
  keys.push_back({"text_config", "rope_parameters",
                  "main and compress, each with rope_type (default or yarn), rope_theta and the keys of rope_scaling; wins over "
                  "the three keys before it",
                  "null"});
  DescribeVisitor vision{"vision_config", keys};
  visit_vision(vision, VisionConfig());
  return keys;
}

}  // namespace hyperparallel::models::deepseek_v41
