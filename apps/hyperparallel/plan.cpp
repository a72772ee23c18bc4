#include "plan.h"

#include <fmt/format.h>

#include <filesystem>

#include "arguments.h"
#include "base/error.h"
#include "base/file.h"
#include "local_ranks.h"
#include "train/layout_plan.h"

namespace hyperparallel {
namespace {

constexpr const char* kUsage = "hyperparallel plan CONFIG [--ranks N] [--json] [--html FILE] [--scenario balanced|worst]";

// Takes a flag out of the arguments.
bool take_flag(std::vector<std::string>& arguments, const std::string& flag) {
  return std::erase(arguments, flag) > 0;
}

models::Routing routing_of(const std::string& scenario) {
  using models::Routing;
  if (scenario.empty() || scenario == "balanced") return Routing::kBalanced;
  if (scenario == "worst") return Routing::kWorst;
  throw UsageError("--scenario {}: expected balanced (tokens spread evenly over the experts) or worst (all to one rank)",
                   scenario);
}

}  // namespace

int plan_layout(const std::vector<std::string>& all_arguments) {
  std::vector<std::string> arguments = all_arguments;
  const int64_t ranks = take_ranks(arguments).value_or(1);
  const bool as_json = take_flag(arguments, "--json");
  const std::string html = take_option(arguments, "--html", "the file to write").value_or("");
  const auto routing = routing_of(take_option(arguments, "--scenario", "balanced or worst").value_or(""));
  const auto config = train::config_from_arguments(arguments, kUsage);
  if (!config) return 0;
  const plan::Plan plan = train::plan_of(*config, ranks, routing);
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
