// `hyperparallel report OUT`: makes OUT/report.html again from the files of a run.
#pragma once

#include <string>
#include <vector>

namespace hyperparallel {

int report(const std::vector<std::string>& arguments);

}  // namespace hyperparallel
