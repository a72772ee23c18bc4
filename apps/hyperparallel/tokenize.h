// `hyperparallel tokenize`.
#pragma once

#include <string>
#include <vector>

namespace hyperparallel {

int tokenize(const std::vector<std::string>& arguments);

}  // namespace hyperparallel
