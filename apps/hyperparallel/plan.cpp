#include "plan.h"

#include <fmt/format.h>

#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "local_ranks.h"
#include "train/layout_plan.h"

namespace hyperparallel {
namespace {

constexpr const char* kUsage = "hyperparallel plan CONFIG [--ranks N] [--json] [--html FILE]";

// Takes a flag out of the arguments.
bool take_flag(std::vector<std::string>& arguments, const std::string& flag) {
  return std::erase(arguments, flag) > 0;
}

// Takes `--html FILE` or `--html=FILE` out of the arguments; empty where there is none.
std::string take_html(std::vector<std::string>& arguments) {
  for (auto it = arguments.begin(); it != arguments.end(); ++it) {
    if (it->starts_with("--html=")) {
      const std::string file = it->substr(7);
      arguments.erase(it);
      return file;
    }
    if (*it != "--html") continue;
    if (it + 1 == arguments.end()) throw UsageError("--html: name the file to write");
    const std::string file = it[1];
    arguments.erase(it, it + 2);
    return file;
  }
  return "";
}

}  // namespace

int plan_layout(const std::vector<std::string>& all_arguments) {
  std::vector<std::string> arguments = all_arguments;
  const int64_t ranks = take_ranks(arguments).value_or(1);
  const bool as_json = take_flag(arguments, "--json");
  const std::string html = take_html(arguments);
  const auto config = train::config_from_arguments(arguments, kUsage);
  if (!config) return 0;
  const plan::Plan plan = train::plan_of(*config, ranks);
  if (!html.empty()) {
    const std::string source = arguments.empty() ? "" : std::filesystem::path(arguments.front()).filename().string();
    file::write(html, plan::to_html(plan, fmt::format("{} on {} rank{}", source, ranks, ranks == 1 ? "" : "s")));
    fmt::print(as_json ? stderr : stdout, "{}\n", html);
  }
  if (as_json) fmt::print("{}", plan::to_json(plan));
  if (!as_json && html.empty()) fmt::print("{}", plan::to_table(plan));
  return 0;
}

}  // namespace hyperparallel
