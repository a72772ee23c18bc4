#include "crop.h"

#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "arguments.h"
#include "base/error.h"
#include "base/file.h"
#include "model_argument.h"
#include "models/deepseek_v41/adapter.h"
#include "models/deepseek_v41/crop.h"
#include "models/deepseek_v41/declarations.h"

namespace hyperparallel {
namespace {

namespace fs = std::filesystem;
namespace model = models::deepseek_v41;
using Json = nlohmann::ordered_json;

// Every key whose value is another one now.
void print_changes(const Json& before, const Json& after, const std::string& prefix = "") {
  for (const auto& [key, value] : after.items()) {
    const Json& old = before.at(key);
    if (value.is_object()) {
      print_changes(old, value, key + ".");
    } else if (value != old) {
      fmt::print("  {:<44} {} -> {}\n", prefix + key, old.dump(), value.dump());
    }
  }
}

void print_totals(const model::ModelConfig& before, const model::ModelConfig& after) {
  const auto old = model::parameters_by_part(before), now = model::parameters_by_part(after);
  int64_t old_total = 0, total = 0;
  fmt::print("\n{:<14}{:>20}{:>20}\n", "parameters", "before", "after");
  for (const auto& [part, count] : old) {
    fmt::print("  {:<12}{:>20}{:>20}\n", part, count, now.at(part));
    old_total += count;
    total += now.at(part);
  }
  fmt::print("  {:<12}{:>20}{:>20}\n", "total", old_total, total);
}

}  // namespace

int crop_model(const std::vector<std::string>& arguments) {
  CLI::App app(
      "Write a smaller configuration of the same make: depth, layer roles and maximum length stay; sizes that are not given "
      "follow those that are",
      "hyperparallel crop");
  std::string path, out;
  app.add_option("CONFIG", path, "config.json of a model, its folder, or a YAML configuration")->required();
  app.add_option("--out", out, "folder that gets the new config.json")->required();
  std::map<std::string, int64_t> sizes;
  for (const model::CropSize& size : model::crop_sizes())
    app.add_option_function<int64_t>(
           size.flag, [&sizes, &size](int64_t n) { sizes[size.key] = n; }, size.help)
        ->type_name("N");
  if (!parse_arguments(app, arguments)) return 0;

  const models::ArchitecturePtr given = read_model_argument(path);
  require(*given, models::Ability::kCrop, "`crop`");
  const model::ModelConfig &before = model::config_of(*given), after = model::crop(before, sizes);
  const fs::path target = fs::path(out) / "config.json";
  if (fs::exists(target))
    throw UsageError("hyperparallel crop: {} exists; name a folder without a config.json by --out", target.string());
  file::create_folders(out);
  file::write(target, to_hf_json(after).dump(1) + "\n");
  fmt::print("{}\n", target.string());
  print_changes(to_hf_json(before), to_hf_json(after));
  print_totals(before, after);
  return 0;
}

}  // namespace hyperparallel
