#include "plan.h"

#include <fmt/format.h>

#include <cinttypes>
#include <cstdio>
#include <filesystem>

#include "arguments.h"
#include "base/error.h"
#include "base/file.h"
#include "local_ranks.h"
#include "train/layout_plan.h"

namespace hyperparallel {
namespace {

constexpr const char* kUsage =
    "hyperparallel plan CONFIG [--ranks N] [--json] [--html FILE] [--scenario balanced|worst] [--pictures N|NxWIDTHxHEIGHT]";

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

// "8" or "8x640x480": so many pictures in the micro-batch of each data-parallel rank, each as large as the model takes them or of
// so many pixels.
models::PlannedPictures pictures_of(const std::optional<std::string>& asked, const train::Config& config) {
  if (!asked) return {};
  const auto refuse = [&](const std::string& why) { throw UsageError("--pictures {}: {}", *asked, why); };
  int64_t count = 0, width = 8192, height = 8192;
  char rest = 0;
  const int read = std::sscanf(asked->c_str(), "%" SCNd64 "x%" SCNd64 "x%" SCNd64 "%c", &count, &width, &height, &rest);
  const bool is_whole = asked->find('x') == std::string::npos ? *asked == std::to_string(count) : read == 3;
  if (!is_whole || count < 0 || width < 1 || height < 1)
    refuse("expected how many pictures a micro-batch has, as 8 or, with their width and height in pixels, 8x640x480");
  const auto input = config.model.architecture->pictures();
  if (!input) refuse(fmt::format("model_type {} takes no pictures", config.model.architecture->model_type()));
  const models::PlannedPictures pictures{count, data::plan_image(width, height, input->limits)};
  const int64_t row = config.train.local_batch_size * config.data.seq_len;
  if (count > row / pictures.each.tokens)
    refuse(fmt::format(
        "{} pictures of {} tokens each are {}, more than the {} of a micro-batch (data.seq_len {} x train.local_batch_size {})",
        count, pictures.each.tokens, count * pictures.each.tokens, row, config.data.seq_len, config.train.local_batch_size));
  return pictures;
}

}  // namespace

int plan_layout(const std::vector<std::string>& all_arguments) {
  std::vector<std::string> arguments = all_arguments;
  const int64_t ranks = take_ranks(arguments).value_or(1);
  const bool as_json = take_flag(arguments, "--json");
  const std::string html = take_option(arguments, "--html", "the file to write").value_or("");
  const auto routing = routing_of(take_option(arguments, "--scenario", "balanced or worst").value_or(""));
  const auto pictures = take_option(arguments, "--pictures", "how many pictures a micro-batch has");
  const auto config = train::config_from_arguments(arguments, kUsage);
  if (!config) return 0;
  const plan::Plan plan = train::plan_of(*config, ranks, routing, pictures_of(pictures, *config));
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
