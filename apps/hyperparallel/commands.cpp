#include "commands.h"

namespace hyperparallel {

const std::vector<Command>& commands() {
  static const std::vector<Command> all = {
  };
  return all;
}

}  // namespace hyperparallel
