#include "arguments.h"

#include <algorithm>

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

std::optional<std::string> take_option(std::vector<std::string>& arguments, const std::string& option, const char* what) {
  for (auto it = arguments.begin(); it != arguments.end(); ++it) {
    const bool joined = it->starts_with(option + "=");
    if (!joined && *it != option) continue;
    if (!joined && it + 1 == arguments.end()) throw UsageError("{}: expected {}", option, what);
    const std::string value = joined ? it->substr(option.size() + 1) : it[1];
    arguments.erase(it, it + (joined ? 1 : 2));
    const auto names_it = [&](const std::string& word) { return word == option || word.starts_with(option + "="); };
    if (std::ranges::any_of(arguments, names_it)) throw UsageError("{} is given twice", option);
    return value;
  }
  return {};
}

}  // namespace hyperparallel
