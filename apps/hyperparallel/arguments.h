// Parsing of a subcommand's arguments with CLI11.
#pragma once

#include <CLI/CLI.hpp>
#include <optional>
#include <string>
#include <vector>

namespace hyperparallel {

// Fills the variables bound to `app`, which was made with CLI::App app("what it does", "hyperparallel NAME"). Returns false where
// --help was asked for and printed: the command is then finished with code 0. Throws UsageError.
bool parse_arguments(CLI::App& app, const std::vector<std::string>& arguments);

// Takes `OPTION VALUE` or `OPTION=VALUE` out of the arguments of a command whose other options are configuration keys. Throws
// UsageError, naming `what` is expected, where the value is missing.
std::optional<std::string> take_option(std::vector<std::string>& arguments, const std::string& option, const char* what);

}  // namespace hyperparallel
