// A model named on the command line: an HF config.json, its folder, or one of our YAML configurations.
#pragma once

#include <string>

#include "models/adapter/family.h"

namespace hyperparallel {

// Throws ConfigError listing every mistake.
models::ArchitecturePtr read_model_argument(const std::string& path);

}  // namespace hyperparallel
