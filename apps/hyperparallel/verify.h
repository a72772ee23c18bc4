// `hyperparallel verify`: the model against a fixture.
#pragma once

#include <string>
#include <vector>

namespace hyperparallel {

int verify(const std::vector<std::string>& arguments);

}  // namespace hyperparallel
