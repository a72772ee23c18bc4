#include "inspect.h"

#include "base/error.h"
#include "command.h"

namespace hyperparallel {
namespace {

const std::vector<Command>& kinds() {
  static const std::vector<Command> all = {
      {"image", "how a picture is decoded, resized and cut into patches and tokens", inspect_image},
  };
  return all;
}

std::string kind_names() {
  std::string names;
  for (const Command& kind : kinds()) names += (names.empty() ? "" : ", ") + kind.name;
  return names;
}

}  // namespace

int inspect(const std::vector<std::string>& arguments) {
  if (!arguments.empty() && (arguments[0] == "--help" || arguments[0] == "-h")) {
    fmt::print("Usage: hyperparallel inspect KIND [arguments]\n\nKinds:\n");
    for (const Command& kind : kinds()) fmt::print("  {:<12} {}\n", kind.name, kind.summary);
    fmt::print("\n`hyperparallel inspect KIND --help` tells a kind's arguments.\n");
    return static_cast<int>(ExitCode::kFinished);
  }
  if (arguments.empty()) throw UsageError("inspect: name what to inspect: {}", kind_names());
  for (const Command& kind : kinds()) {
    if (kind.name == arguments[0]) return kind.run({arguments.begin() + 1, arguments.end()});
  }
  throw UsageError("inspect: unknown kind `{}`; the kinds are {}", arguments[0], kind_names());
}

}  // namespace hyperparallel
