#include "docs.h"

#include <fmt/format.h>

#include "arguments.h"
#include "subcommand.h"
#include "train/config.h"

namespace hyperparallel {
namespace {

int docs_configuration(const std::vector<std::string>& arguments) {
  CLI::App app("Print docs/configuration.md: every key of a configuration", "hyperparallel docs configuration");
  if (parse_arguments(app, arguments)) fmt::print("{}", train::configuration_page());
  return 0;
}

}  // namespace

int docs(const std::vector<std::string>& arguments) {
  static const std::vector<Command> kinds = {
      {"configuration", "every key of a configuration, with type, default and meaning", docs_configuration},
  };
  return run_kind("docs", kinds, arguments);
}

}  // namespace hyperparallel
