// A configuration as a flat list of its keys: what printing, help, documentation and overrides work from.
#pragma once

#include <string>
#include <vector>

#include "train/config.h"

namespace hyperparallel::train {

struct ListedKey {
  std::string key;  // dotted
  std::string help;
  std::string type;   // in words with range and unit, for example "whole number at least 1, in tokens"
  std::string value;  // as YAML on one line
  bool is_section = false;
  bool is_boolean = false;
  bool is_list = false;
};

// Every section and key in the order of the table.
std::vector<ListedKey> list_keys(const Config& config);

}  // namespace hyperparallel::train
