// Entry point: finds the subcommand, runs it, and turns exceptions into one clear message and an exit code.
#include <c10/util/Exception.h>

#include <new>

#include "base/error.h"
#include "base/log.h"
#include "commands.h"

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
  } catch (const Error& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return static_cast<int>(error.code());
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "error: out of memory\n");
    return static_cast<int>(ExitCode::kOutOfMemory);
  } catch (const c10::Error& error) {
    fmt::print(stderr, "internal error: {}\n", error.what_without_backtrace());
    return static_cast<int>(ExitCode::kBug);
  } catch (const std::exception& error) {
    fmt::print(stderr, "internal error: {}\n", error.what());
    return static_cast<int>(ExitCode::kBug);
  }
}
