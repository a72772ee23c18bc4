// What `hyperparallel inspect` can show. Each kind is defined in a file of its own, inspect_KIND.cpp.
#pragma once

#include <string>
#include <vector>

namespace hyperparallel {

int inspect(const std::vector<std::string>& arguments);

int inspect_checkpoint(const std::vector<std::string>& arguments);
int inspect_model(const std::vector<std::string>& arguments);
int inspect_data(const std::vector<std::string>& arguments);
int inspect_image(const std::vector<std::string>& arguments);
int inspect_kernels(const std::vector<std::string>& arguments);
int inspect_trace(const std::vector<std::string>& arguments);

}  // namespace hyperparallel
