// `hyperparallel bench KIND`.
#pragma once

#include <string>
#include <vector>

namespace hyperparallel {

int bench(const std::vector<std::string>& arguments);

}  // namespace hyperparallel
