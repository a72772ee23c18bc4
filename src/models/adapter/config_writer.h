// Writing config.json and its documentation, by the list of keys that config_reader.h reads.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/yaml.h"
#include "models/adapter/family.h"

namespace hyperparallel::models {

struct KeyWriter {
  nlohmann::ordered_json& json;

  template <class T>
  void required(const char* key, const T& field, const yaml::Range&) {
    json[key] = field;
  }
  template <class T>
  void optional(const char* key, const T& field, const yaml::Range&) {
    json[key] = field;
  }
  void optional(const char* key, const std::optional<double>& field, const yaml::Range&) {
    json[key] = field ? nlohmann::ordered_json(*field) : nlohmann::ordered_json(nullptr);
  }
  void optional(const char* key, bool field) { json[key] = field; }
  template <class T>
  void fixed(const char* key, const T& only) {
    json[key] = only;
  }
};

class KeyDescriber {
 public:
  // Adds keys to `keys` as those of `part`.
  KeyDescriber(std::string part, std::vector<KeyDescription>& keys) : part_(std::move(part)), keys_(keys) {}

  template <class T>
  void required(const char* key, const T& field, const yaml::Range& range) {
    optional(key, field, range);
    keys_.back().default_value = "required";
  }
  template <class T>
  void optional(const char* key, const T& field, const yaml::Range& range) {
    keys_.push_back({part_, key, fmt::format("{} {}", type_of(field), range.describe()), text_of(field)});
  }
  void optional(const char* key, bool field) { keys_.push_back({part_, key, "true or false", text_of(field)}); }
  template <class T>
  void fixed(const char* key, const T& only) {
    keys_.push_back({part_, key, fmt::format("{} alone", text_of(only)), text_of(only)});
  }

 private:
  static std::string type_of(int64_t) { return "whole number"; }
  static std::string type_of(double) { return "number"; }
  static std::string type_of(const std::optional<double>&) { return "null or number"; }
  static std::string type_of(const std::vector<int64_t>&) { return "list of whole numbers"; }
  static std::string text_of(int64_t value) { return fmt::format("{}", value); }
  static std::string text_of(double value) { return fmt::format("{}", value); }
  static std::string text_of(bool value) { return value ? "true" : "false"; }
  static std::string text_of(const std::string& value) { return value; }
  static std::string text_of(const std::optional<double>& value) { return value ? text_of(*value) : "null"; }
  static std::string text_of(const std::vector<int64_t>&) { return "[]"; }

  std::string part_;
  std::vector<KeyDescription>& keys_;
};

}  // namespace hyperparallel::models
