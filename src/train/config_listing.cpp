#include "train/config_listing.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "train/config_keys.h"

namespace hyperparallel::train {
namespace {

std::string yaml_text(const std::string& text) {
  Problems problems;
  const bool plain =
      !text.empty() &&
      text.find_first_not_of("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_./") == std::string::npos;
  if (plain) {
    yaml::Node node = yaml::parse_yaml(text, "", problems);
    if (yaml::to_text(node, problems) == text && problems.errors().empty()) return text;
  }
  return nlohmann::json(text).dump();  // a JSON string is a YAML string
}

std::string with_range(std::string type, const Accept& accept) {
  if (std::string range = accept.range.describe(); !range.empty()) type += " " + range;
  if (*accept.unit) type += fmt::format(", in {}", accept.unit);
  return type;
}

// Type in words and value as YAML, for each type of field.
std::string type_of(const int64_t&, const Accept& accept) {
  return with_range("whole number", accept);
}
std::string type_of(const double&, const Accept& accept) {
  return with_range("number", accept);
}
std::string type_of(const bool&, const Accept&) {
  return "true or false";
}
std::string type_of(const std::string&, const Accept&) {
  return "text";
}
std::string type_of(const Path&, const Accept&) {
  return "path";
}
std::string type_of(const std::vector<double>&, const Accept& accept) {
  return with_range("list of numbers", accept);
}
std::string type_of(const std::vector<std::string>&, const Accept&) {
  return "list of texts";
}
template <class T>
std::string type_of(const std::vector<T>&, const Accept&) {
  return "list";
}
template <class T>
requires std::is_enum_v<T> std::string type_of(const T& value, const Accept&) {
  return fmt::format("{}", fmt::join(choices(value), ", "));
}
template <class T>
std::string type_of(const std::optional<T>&, const Accept& accept) {
  return type_of(T{}, accept);
}

std::string value_of(const int64_t& value) {
  return fmt::format("{}", value);
}
std::string value_of(const double& value) {
  return fmt::format("{}", value);
}
std::string value_of(const bool& value) {
  return value ? "true" : "false";
}
std::string value_of(const std::string& value) {
  return yaml_text(value);
}
std::string value_of(const Path& value) {
  return value.empty() ? "null" : yaml_text(value.string());
}
template <class T>
requires std::is_enum_v<T> std::string value_of(const T& value) {
  return choices(value)[static_cast<size_t>(value)];
}
template <class T>
std::string value_of(const std::optional<T>& value) {
  return value ? value_of(*value) : "null";
}
template <class T>
std::string value_of(const std::vector<T>& values);
template <class T>
requires std::is_class_v<T> std::string value_of(const T& entry);

class Lister {
 public:
  template <class T>
  void operator()(const char* name, const T& field, const Accept& accept, const char* help) {
    ListedKey& key = keys.emplace_back();
    key.key = prefix_ + name;
    key.help = help;
    key.type = type_of(field, accept);
    key.value = value_of(field);
    key.is_boolean = std::is_same_v<T, bool>;
    key.is_list = is_list(field);
  }

  template <class T>
  void section(const char* name, const T& field, const char* help) {
    ListedKey& key = keys.emplace_back();
    key.key = prefix_ + name;
    key.help = help;
    key.is_section = true;
    const std::string outer = std::exchange(prefix_, key.key + ".");
    visit_keys(*this, field);
    prefix_ = outer;
  }

  std::vector<ListedKey> keys;

 private:
  template <class T>
  static bool is_list(const std::vector<T>&) {
    return true;
  }
  template <class T>
  static bool is_list(const T&) {
    return false;
  }

  std::string prefix_;
};

template <class T>
std::string value_of(const std::vector<T>& values) {
  std::vector<std::string> texts;
  for (const T& value : values) texts.push_back(value_of(value));
  return fmt::format("[{}]", fmt::join(texts, ", "));
}

template <class T>
requires std::is_class_v<T> std::string value_of(const T& entry) {
  Lister lister;
  visit_keys(lister, entry);
  std::vector<std::string> texts;
  for (const ListedKey& key : lister.keys) texts.push_back(fmt::format("{}: {}", key.key, key.value));
  return fmt::format("{{{}}}", fmt::join(texts, ", "));
}

}  // namespace

std::vector<ListedKey> list_keys(const Config& config) {
  Lister lister;
  visit_keys(lister, config);
  return lister.keys;
}

}  // namespace hyperparallel::train
