// `hyperparallel train CONFIG [--section.key=value]`.
#pragma once

#include <string>
#include <vector>

namespace hyperparallel {

int train_model(const std::vector<std::string>& arguments);

}  // namespace hyperparallel
