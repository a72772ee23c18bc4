// `hyperparallel plan CONFIG [--ranks N] [--json] [--html FILE]`: who holds what and what is sent, before any memory is taken.
#pragma once

#include <string>
#include <vector>

namespace hyperparallel {

int plan_layout(const std::vector<std::string>& arguments);

}  // namespace hyperparallel
