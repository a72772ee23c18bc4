// A smaller model of the same make: narrower, with fewer experts and words, but with every layer in its role and the same longest
// sequence, so that what holds for the whole model can be tried on a small machine.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "models/deepseek_v41/config.h"

namespace hyperparallel::models::deepseek_v41 {

// A size that a crop may be given.
struct CropSize {
  const char* flag;  // "--hidden"
  const char* key;   // "hidden_size"; of the tower "vision_config.hidden_size"
  const char* help;  // what it is, and what it is where it is not given
};
const std::vector<CropSize>& crop_sizes();

// The config cut to `sizes`, by key. Sizes that are not given follow, NOTE [What follows] in crop.cpp. Throws one ConfigError
// that lists every size which cannot be: key, found, accepted.
ModelConfig crop(const ModelConfig& config, const std::map<std::string, int64_t>& sizes);

}  // namespace hyperparallel::models::deepseek_v41
