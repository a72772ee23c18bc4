// `hyperparallel docs KIND`: documentation pages that are generated from the program.
#pragma once

#include <string>
#include <vector>

namespace hyperparallel {

int docs(const std::vector<std::string>& arguments);

}  // namespace hyperparallel
