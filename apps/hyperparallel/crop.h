// `hyperparallel crop CONFIG --hidden N ... --out DIR`: a smaller config.json of the same make.
#pragma once

#include <string>
#include <vector>

namespace hyperparallel {

int crop_model(const std::vector<std::string>& arguments);

}  // namespace hyperparallel
