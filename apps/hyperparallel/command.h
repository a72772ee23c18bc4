// One subcommand of the program. Each file beside this defines one or a few `Command`s and lists them in commands.cpp.
#pragma once

#include <string>
#include <vector>

namespace hyperparallel {

struct Command {
  std::string name;     // as typed, for example "tokenize"
  std::string summary;  // one line for `hyperparallel --help`
  // Runs with the arguments after the name. Returns the exit code; user errors are thrown (base/error.h).
  int (*run)(const std::vector<std::string>& arguments);
};

}  // namespace hyperparallel
