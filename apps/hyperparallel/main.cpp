// Entry point: finds the subcommand, runs it, and turns exceptions into one clear message and an exit code.
#include "base/log.h"
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
  if (arguments.empty() || arguments[0] == "--help" || arguments[0] == "-h") {
    print_help();
    return static_cast<int>(arguments.empty() ? ExitCode::kUsage : ExitCode::kFinished);
  }
  for (const Command& command : commands()) {
    if (command.name == arguments[0]) return command.run({arguments.begin() + 1, arguments.end()});
  }
  throw UsageError("unknown command `{}`; `hyperparallel --help` lists the commands", arguments[0]);
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
