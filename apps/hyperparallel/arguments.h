// Parsing of a subcommand's arguments with CLI11.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace hyperparallel {

// Fills the variables bound to `app`, which was made with CLI::App app("what it does", "hyperparallel NAME"). Returns false where
// --help was asked for and printed: the command is then finished with code 0. Throws UsageError.
bool parse_arguments(CLI::App& app, const std::vector<std::string>& arguments);

}  // namespace hyperparallel
