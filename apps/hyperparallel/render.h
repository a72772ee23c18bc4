#pragma once

#include <string>
#include <vector>

namespace hyperparallel {

int render(const std::vector<std::string>& arguments);

}  // namespace hyperparallel
