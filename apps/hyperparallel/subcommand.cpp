#include "subcommand.h"

#include "base/error.h"

namespace hyperparallel {
namespace {

std::string names_of(const std::vector<Command>& kinds) {
  std::string names;
  for (const Command& kind : kinds) names += (names.empty() ? "" : ", ") + kind.name;
  return names;
}

}  // namespace

int run_kind(std::string_view command, const std::vector<Command>& kinds, const std::vector<std::string>& arguments) {
  if (arguments.empty()) throw UsageError("{}: say what: {}", command, names_of(kinds));
  if (arguments[0] == "--help" || arguments[0] == "-h") {
    fmt::print("Usage: hyperparallel {} KIND [arguments]\n\nKinds:\n", command);
    for (const Command& kind : kinds) fmt::print("  {:<12} {}\n", kind.name, kind.summary);
    fmt::print("\n`hyperparallel {} KIND --help` tells a kind's arguments.\n", command);
    return static_cast<int>(ExitCode::kFinished);
  }
  for (const Command& kind : kinds) {
    if (kind.name == arguments[0]) return kind.run({arguments.begin() + 1, arguments.end()});
  }
  throw UsageError("{}: unknown kind `{}`; there are {}", command, arguments[0], names_of(kinds));
}

}  // namespace hyperparallel
