#include "arguments.h"

#include "base/error.h"

namespace hyperparallel {

bool parse_arguments(CLI::App& app, const std::vector<std::string>& arguments) {
  try {
    std::vector<std::string> from_the_back(arguments.rbegin(), arguments.rend());  // as CLI11 takes them
    app.parse(from_the_back);
    return true;
  } catch (const CLI::CallForHelp&) {
    fmt::print("{}", app.help());
    return false;
  } catch (const CLI::ParseError& error) {
    throw UsageError("{}: {}\n`{} --help` tells its arguments", app.get_name(), error.what(), app.get_name());
  }
}

}  // namespace hyperparallel
