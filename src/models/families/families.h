// All families of models. To add one: its folder under models/, its line in families.cpp and in CMakeLists.txt.
#pragma once

#include <string>
#include <vector>

#include "models/adapter/family.h"

namespace hyperparallel::models {

const std::vector<Family>& families();

// Reads a model by its `model_type` (nothing there: the first family's). An unknown type is a problem, and null is returned.
ArchitecturePtr parse_architecture(const yaml::Node& node, Problems& problems, yaml::MapReader::Unknown unknown,
                                   const ParseOptions& options = {});

// Reads a config.json. Throws one ConfigError that lists every mistake with file, line and key. Keys that are not ours are warned
// about and ignored, since files of other tools carry extras.
ArchitecturePtr read_architecture(const std::string& path, const ParseOptions& options = {});

}  // namespace hyperparallel::models
