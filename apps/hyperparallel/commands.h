// All subcommands, in the order that `--help` lists them.
#pragma once

#include "command.h"

namespace hyperparallel {

const std::vector<Command>& commands();

}  // namespace hyperparallel
