#include "commands.h"

#include "inspect.h"

namespace hyperparallel {

const std::vector<Command>& commands() {
  static const std::vector<Command> all = {
      {"inspect", "show what a picture, data, a checkpoint or a model becomes", inspect},
  };
  return all;
}

}  // namespace hyperparallel
