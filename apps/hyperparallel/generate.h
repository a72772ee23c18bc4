// `hyperparallel generate`.
#pragma once

#include <string>
#include <vector>

namespace hyperparallel {

int generate(const std::vector<std::string>& arguments);

}  // namespace hyperparallel
