// Entry point: finds the subcommand, runs it, and turns exceptions into one clear message and an exit code.
#include "base/log.h"
#include "base/yaml.h"
#include "commands.h"
#include "dist/failure.h"

namespace hyperparallel {
namespace {

void print_help() {
  fmt::print("Usage: hyperparallel COMMAND [arguments]\n\nCommands:\n");
  for (const Command& command : commands()) fmt::print("  {:<12} {}\n", command.name, command.summary);
  fmt::print("\n`hyperparallel COMMAND --help` tells a command's arguments.\n");
}

int run(const std::vector<std::string>& arguments) {
  if (arguments.empty() || arguments[0] == "--help" || arguments[0] == "-h" || arguments[0] == "help") {
    print_help();
    return static_cast<int>(arguments.empty() ? ExitCode::kUsage : ExitCode::kFinished);
  }
  if (arguments[0] == "--version") {
    fmt::print("hyperparallel {}\n", HP_VERSION);
    return static_cast<int>(ExitCode::kFinished);
  }
  std::vector<std::string> names;
  for (const Command& command : commands()) {
    names.push_back(command.name);
    if (command.name == arguments[0]) return command.run({arguments.begin() + 1, arguments.end()});
  }
  const std::string nearest = nearest_word(arguments[0], names);
  throw UsageError("unknown command `{}`; {}`hyperparallel --help` lists all", arguments[0],
                   nearest.empty() ? "" : fmt::format("the nearest is `{}`, and ", nearest));
}

}  // namespace
}  // namespace hyperparallel

int main(int argc, char** argv) {
  using namespace hyperparallel;
  log::init();
  try {
    return run({argv + 1, argv + argc});
  } catch (...) {
    const dist::Failure failure = dist::current_failure();
    fmt::print(stderr, "{}: {}\n", failure.code == ExitCode::kBug ? "internal error" : "error", failure.message);
    return static_cast<int>(failure.code);
  }
}
