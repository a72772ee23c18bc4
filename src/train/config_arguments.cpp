// The part of a command line that commands with a configuration share.
#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "train/config.h"
#include "train/config_listing.h"
#include "train/config_override.h"

namespace hyperparallel::train {
namespace {

struct Split {
  std::vector<std::string> paths, overrides;
  bool print_config = false, help = false;
  std::string help_section;
};

[[noreturn]] void refuse_option(const std::string& argument) {
  const std::string name = argument.substr(0, argument.find('='));
  std::string word = name.substr(std::min<size_t>(name.find_first_not_of('-'), name.size()));
  std::string hint;
  for (const ListedKey& key : list_keys({})) {
    if (!key.is_section && key.key.ends_with("." + word))
      hint += fmt::format("{}--{}", hint.empty() ? "; did you mean " : " or ", key.key);
  }
  throw UsageError("unknown option {}{}{}; overrides look like --section.key=value", name, hint, hint.empty() ? "" : "?");
}

Split split_arguments(const std::vector<std::string>& arguments) {
  Split split;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    const std::string* next = i + 1 < arguments.size() ? &arguments[i + 1] : nullptr;
    if (argument == "--help" || argument == "-h") {
      split.help = true;
      if (next && !next->starts_with("-")) split.help_section = arguments[++i];
    } else if (argument == "--print-config") {
      split.print_config = true;
    } else if (is_override(argument)) {
      split.overrides.push_back(argument);
      if (takes_value(argument, next)) split.overrides.push_back(arguments[++i]);
    } else if (argument.starts_with("-")) {
      refuse_option(argument);
    } else {
      split.paths.push_back(argument);
    }
  }
  return split;
}

}  // namespace

std::optional<Config> config_from_arguments(const std::vector<std::string>& arguments, const std::string& usage,
                                            const LoadOptions& options) {
  const Split split = split_arguments(arguments);
  if (split.help) {
    if (split.help_section.empty()) {
      fmt::print("Usage: {} [--section.key=value ...] [--print-config]\n\n", usage);
    }
    fmt::print("{}", help_text(split.help_section));
    return std::nullopt;
  }
  if (split.paths.size() != 1)
    throw UsageError("expected one configuration file, found {}; usage: {}", split.paths.size(), usage);
  Config config = load_config(split.paths[0], split.overrides, split.print_config ? LoadOptions{} : options);
  if (!split.print_config) return config;
  fmt::print("{}", to_yaml(config, true));
  return std::nullopt;
}

}  // namespace hyperparallel::train
