// `hyperparallel eval`.
#pragma once

#include <string>
#include <vector>

namespace hyperparallel {

int evaluate(const std::vector<std::string>& arguments);

}  // namespace hyperparallel
