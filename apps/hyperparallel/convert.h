// `hyperparallel convert import|export`: between checkpoints of ours and Hugging Face folders.
#pragma once

#include <string>
#include <vector>

namespace hyperparallel {

int convert(const std::vector<std::string>& arguments);

}  // namespace hyperparallel
