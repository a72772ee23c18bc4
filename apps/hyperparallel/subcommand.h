// Commands that have kinds, as `inspect image` and `prepare easy-vqa`: each kind is a Command of its own.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "command.h"

namespace hyperparallel {

// Runs the kind that the first argument names, with the arguments after it; `--help` lists the kinds.
int run_kind(std::string_view command, const std::vector<Command>& kinds, const std::vector<std::string>& arguments);

}  // namespace hyperparallel
