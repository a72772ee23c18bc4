// What `hyperparallel prepare` can get ready. Each kind is defined in a file of its own, prepare_KIND.cpp.
#pragma once

#include <string>
#include <vector>

namespace hyperparallel {

int prepare(const std::vector<std::string>& arguments);

int prepare_easy_vqa(const std::vector<std::string>& arguments);

}  // namespace hyperparallel
