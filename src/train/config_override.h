// Dotted overrides of the command line.
#pragma once

#include <string>
#include <vector>

#include "base/yaml.h"

namespace hyperparallel::train {

// Whether `argument` is a dotted override, "--section.key" with or without "=value".
bool is_override(const std::string& argument);

// Whether the override `argument` takes the argument after it, `next`, as its value: it has none of its own and is no flag.
bool takes_value(const std::string& argument, const std::string* next);

// Puts overrides into the tree of the file, each at its key. Mistakes in their form go to `problems`; unknown keys stay in the
// tree, to be found with those of the file.
void apply_overrides(yaml::Node& root, const std::vector<std::string>& overrides, Problems& problems);

}  // namespace hyperparallel::train
