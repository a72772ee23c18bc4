// The rules between keys of a configuration, and what this version has not finished.
#pragma once

#include "base/yaml.h"
#include "train/config.h"

namespace hyperparallel::train {

// Adds every broken rule to `problems`, at the place in `root`, the tree that `config` was read from.
void check_config(const Config& config, const yaml::Node& root, const LoadOptions& options, Problems& problems);

}  // namespace hyperparallel::train
