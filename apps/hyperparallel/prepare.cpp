#include "prepare.h"

#include "subcommand.h"

namespace hyperparallel {

int prepare(const std::vector<std::string>& arguments) {
  static const std::vector<Command> kinds = {
      {"easy-vqa", "questions about simple pictures, from the PyPI package of this name", prepare_easy_vqa},
  };
  return run_kind("prepare", kinds, arguments);
}

}  // namespace hyperparallel
