// Reading config.json. A family declares each plain key once, in a function template that visitors go through:
//
//     template <class Visitor, class Config>
//     void visit_config(Visitor& visit, Config&& c) {
//       visit.required("hidden_size", c.hidden_size, kPositive);
//       visit.optional("rms_norm_eps", c.rms_norm_eps, kFrom0);   // not given: the member's own value
//       visit.fixed("hidden_act", std::string("silu"));           // the only value that we compute; any other is refused
//     }
//
// KeyReader fills the config; KeyWriter and KeyDescriber of config_writer.h give config.json and its documentation.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>

#include "base/yaml.h"

namespace hyperparallel::models {

inline constexpr yaml::Range kPositive{.min = 1, .max = 1e12};
inline constexpr yaml::Range kNotNegative{.min = 0, .max = 1e12};
inline constexpr yaml::Range kAbove0{.min = 0, .above = true};
inline constexpr yaml::Range kFrom0{.min = 0};
inline constexpr yaml::Range kDegree{.min = 1, .max = 1024};  // small counts that size a list per layer
inline constexpr yaml::Range kLayers{.min = 1, .max = 100000};

class KeyReader {
 public:
  // `partial`: required keys may be missing.
  explicit KeyReader(yaml::MapReader& reader, bool partial = false) : reader_(reader), partial_(partial) {}

  template <class T>
  void required(const char* key, T& field, const yaml::Range& range) {
    optional(key, field, range);
    const yaml::Node* entry = reader_.node().find(key);
    if (partial_ || (entry && !entry->is_null())) return;
    reader_.complain(key, "is required");
    sound_ = false;
  }

  template <class T>
  void optional(const char* key, T& field, const yaml::Range& range) {
    const bool read = reader_.read(key, field, range);
    if (const yaml::Node* entry = reader_.node().find(key); !read && entry && !entry->is_null()) sound_ = false;
  }

  void optional(const char* key, std::optional<double>& field, const yaml::Range& range) {
    double value = 0;
    if (reader_.read(key, value, range)) field = value;
  }

  void optional(const char* key, bool& field) { reader_.read(key, field); }

  template <class T>
  void fixed(const char* key, const T& only) {
    T value = only;
    if (reader_.read(key, value) && value != only) {
      reader_.complain(key, fmt::format("{} is not supported, expected {}", value, only));
    }
  }

  // Whether every key that the rules between keys look at was right, so that broken rules are news.
  bool sound() const { return sound_; }

 private:
  yaml::MapReader& reader_;
  bool partial_;
  bool sound_ = true;
};

// `dtype`, or `torch_dtype` as older files spell it: of the stored weights.
void read_dtype(yaml::MapReader& reader, std::string& dtype);
// Keys that Hugging Face files carry and that say nothing about what is computed: marks them as known.
void ignore_extras(yaml::MapReader& reader);

}  // namespace hyperparallel::models
