#include "train/report.h"

#include <fmt/chrono.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>

#include "base/error.h"
#include "base/file.h"
#include "base/page.h"
#include "train/report_page.h"
#include "train/report_picture.h"

namespace hyperparallel::train {
namespace {

using Json = nlohmann::ordered_json;
using Path = std::filesystem::path;

constexpr size_t kReportExamples = 24;

// ---- Reading ----

// One scalar over the run.
struct Series {
  std::vector<int64_t> steps;
  std::vector<double> values;
};
using SeriesByName = std::map<std::string, Series>;

SeriesByName read_metrics(const Path& path) {
  if (!std::filesystem::exists(path)) {
    throw UsageError("{} does not exist: `{}` is not the output folder of a training run", path.string(),
                     path.parent_path().string());
  }
  SeriesByName series;
  std::ifstream lines(path);
  for (std::string line; std::getline(lines, line);) {
    const auto record = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!record.is_object() || !record.contains("step") || !record["step"].is_number_integer()) continue;  // torn by a crash
    for (const auto& [name, value] : record.items()) {
      if (!value.is_number() || name == "step") continue;
      series[name].steps.push_back(record["step"]);
      series[name].values.push_back(value);
    }
  }
  return series;
}

// The JSON in `path`, null where there is no such file.
Json read_optional_json(const Path& path) {
  if (!std::filesystem::exists(path)) return nullptr;
  try {
    return Json::parse(file::read(path));
  } catch (const Json::parse_error& error) {
    throw DataError("{} is not JSON: {}", path.string(), error.what());
  }
}

// ---- Curves ----

double rounded(double value) {
  return std::stod(fmt::format("{:.6g}", value));
}

// {"name", "x", "y"} and, where several steps became one point, "lo" and "hi".
Json curve(const std::string& name, const Series& series) {
  const size_t count = series.values.size(), points = std::min(count, kReportPoints);
  Json x = Json::array(), y = Json::array(), lowest = Json::array(), highest = Json::array();
  for (size_t point = 0; point < points; ++point) {
    const size_t begin = count * point / points, end = count * (point + 1) / points;
    double sum = 0;
    for (size_t i = begin; i < end; ++i) sum += series.values[i];
    const auto [low, high] = std::minmax_element(series.values.begin() + begin, series.values.begin() + end);
    x.push_back(series.steps[end - 1]);
    y.push_back(rounded(sum / static_cast<double>(end - begin)));
    lowest.push_back(rounded(*low));
    highest.push_back(rounded(*high));
  }
  Json result = {{"name", name}, {"x", x}, {"y", y}};
  if (points < count) {
    result["lo"] = lowest;
    result["hi"] = highest;
  }
  return result;
}

// Charts in the order of the page. Each takes its series out of `rest`, so that what is left can be shown as well.
class Charts {
 public:
  explicit Charts(SeriesByName series) : rest_(std::move(series)) {}

  // `names`: pairs of metric and label; metrics that the run does not have are left out, and so is a chart without any.
  void add(const std::string& title, const std::vector<std::pair<std::string, std::string>>& names,
           Json options = Json::object()) {
    Json curves = Json::array();
    for (const auto& [name, label] : names) {
      const auto found = rest_.find(name);
      if (found == rest_.end()) continue;
      curves.push_back(curve(label, found->second));
      rest_.erase(found);
    }
    if (curves.empty()) return;
    Json chart = {{"title", title}, {"series", curves}};
    chart.update(options);
    charts_.push_back(chart);
  }

  // One chart for each modality, one curve for each layer in the order of layers.
  void add_expert_load() {
    for (const auto& [suffix, title] : {std::pair<std::string, std::string>{"/text", "Expert load, text tokens"},
                                        {"/image", "Expert load, image tokens"},
                                        {"", "Expert load"}}) {
      std::vector<std::pair<int64_t, std::string>> layers;
      for (const auto& [name, series] : rest_) {
        if (auto layer = load_layer(name, suffix)) layers.emplace_back(*layer, name);
      }
      std::sort(layers.begin(), layers.end());
      std::vector<std::pair<std::string, std::string>> names;
      for (const auto& [layer, name] : layers)
        names.emplace_back(name, layer < 0 ? "all layers" : fmt::format("layer {}", layer));
      add(title, names, {{"unit", "max / mean"}, {"smooth", true}});
    }
  }

  void drop(const std::string& name) { rest_.erase(name); }

  void add_rest() {
    for (const SeriesByName others = rest_; const auto& [name, series] : others) add(name, {{name, name}});
  }

  Json take() { return std::move(charts_); }

 private:
  // The layer that `moe/load_max_over_mean[/layer.<i>]<suffix>` is about, -1 for all.
  static std::optional<int64_t> load_layer(std::string_view name, std::string_view suffix) {
    constexpr std::string_view kPrefix = "moe/load_max_over_mean", kLayer = "/layer.";
    if (!name.starts_with(kPrefix) || !name.ends_with(suffix)) return std::nullopt;
    name.remove_prefix(kPrefix.size());
    if (name.size() < suffix.size()) return std::nullopt;
    name.remove_suffix(suffix.size());
    if (name.empty()) return -1;
    if (!name.starts_with(kLayer)) return std::nullopt;
    name.remove_prefix(kLayer.size());
    if (name.empty() || name.size() > 9 || name.find_first_not_of("0123456789") != name.npos) return std::nullopt;
    return std::stoll(std::string(name));
  }

  SeriesByName rest_;
  Json charts_ = Json::array();
};

SeriesByName scaled(SeriesByName series, const std::string& name, double factor) {
  const auto found = series.find(name);
  if (found != series.end())
    std::for_each(found->second.values.begin(), found->second.values.end(), [=](double& value) { value *= factor; });
  return series;
}

Json make_charts(SeriesByName series) {
  series = scaled(std::move(series), "memory_rss_bytes", 1.0 / (1 << 30));
  series = scaled(std::move(series), "mfu", 100);
  Charts charts(std::move(series));
  charts.add("Loss", {{"loss", "training"}, {"validation_metrics/loss", "validation"}},
             {{"wide", true}, {"smooth", true}, {"log", true}});
  charts.add("Gradient norm", {{"grad_norm", "before clipping"}}, {{"log", true}, {"smooth", true}});
  charts.add("Learning rate", {{"lr", "learning rate"}});
  charts.add("Throughput", {{"tokens_per_second", "tokens / s"}}, {{"unit", "tokens / s"}, {"smooth", true}, {"zero", true}});
  charts.add("Share of the machine's peak", {{"mfu", "MFU"}}, {{"unit", "%"}, {"smooth", true}, {"zero", true}});
  charts.add_expert_load();
  charts.add("Time of a step", {{"seconds", "whole step"}, {"data_seconds", "waiting for data"}},
             {{"unit", "s"}, {"smooth", true}, {"zero", true}});
  charts.add("Memory", {{"memory_rss_bytes", "resident"}, {"memory/max_active(GiB)", "tensors at most"}},
             {{"unit", "GiB"}, {"zero", true}});
  charts.add("Tokens of a step", {{"tokens", "all"}, {"supervised_tokens", "supervised"}}, {{"zero", true}});
  charts.drop("tflops");  // the throughput once more
  charts.add_rest();
  return charts.take();
}

// ---- Numbers in words ----

std::string duration(double seconds) {
  const auto whole = static_cast<int64_t>(std::lround(seconds));
  if (seconds < 60) return fmt::format("{:.1f} s", seconds);
  if (whole < 3600) return fmt::format("{} min {:02} s", whole / 60, whole % 60);
  return fmt::format("{} h {:02} min", whole / 3600, whole / 60 % 60);
}

std::string quantity(double value) {
  for (const auto& [size, unit] : {std::pair{1e12, " T"}, {1e9, " G"}, {1e6, " M"}, {1e3, " k"}}) {
    if (value >= size) return fmt::format("{:.3g}{}", value / size, unit);
  }
  return fmt::format("{:.3g}", value);
}

double sum(const Series& series) {
  return std::accumulate(series.values.begin(), series.values.end(), 0.0);
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

// The large numbers at the top: [{"label", "value", "note"}, ...].
Json make_tiles(const SeriesByName& series, const Json& eval) {
  Json tiles = Json::array();
  auto tile = [&](const std::string& label, const std::string& value, const std::string& note) {
    tiles.push_back({{"label", label}, {"value", value}, {"note", note}});
  };
  auto with = [&](const std::string& name, auto&& use) {
    if (const auto found = series.find(name); found != series.end()) use(found->second);
  };
  if (eval.is_object() && eval.contains("exact_match")) {
    tile("Exact match", fmt::format("{:.1f} %", eval["exact_match"].get<double>() * 100),
         eval.value("split", std::string("evaluation")));
  }
  with("loss", [&](const Series& loss) {
    tile("Training loss", fmt::format("{:.4f}", loss.values.back()), fmt::format("step {}", loss.steps.back()));
  });
  with("validation_metrics/loss", [&](const Series& loss) {
    const size_t best = static_cast<size_t>(std::min_element(loss.values.begin(), loss.values.end()) - loss.values.begin());
    tile("Validation loss", fmt::format("{:.4f}", loss.values.back()),
         fmt::format("best {:.4f} at step {}", loss.values[best], loss.steps[best]));
  });
  with("seconds", [&](const Series& seconds) {
    tile("Time in steps", duration(sum(seconds)),
         fmt::format("{} step{}", seconds.values.size(), seconds.values.size() == 1 ? "" : "s"));
  });
  with("tokens", [&](const Series& tokens) { tile("Tokens", quantity(sum(tokens)), "trained on"); });
  with("tokens_per_second",
       [&](const Series& rate) { tile("Throughput", quantity(median(rate.values)) + "/s", "median, tokens"); });
  with("memory_rss_bytes", [&](const Series& rss) {
    tile("Memory", fmt::format("{:.2f} GiB", *std::max_element(rss.values.begin(), rss.values.end()) / (1 << 30)),
         "highest after a step");
  });
  return tiles;
}

// ---- Evaluation ----

// A share given as a number or as {"exact_match": number}; null where neither.
Json share(const Json& value) {
  if (value.is_number()) return value;
  return value.is_object() && value.contains("exact_match") ? value["exact_match"] : Json();
}

// {"rows": [{"type", "exact_match", "baseline", "count"}, ...]}, all types first.
Json make_eval(const Json& eval) {
  if (!eval.is_object() || !eval.contains("exact_match")) return nullptr;
  const Json baseline = eval.value("baseline", Json());
  const Json baseline_by_type = baseline.is_object() ? baseline.value("by_type", Json::object()) : Json::object();
  const Json by_type = eval.value("by_type", Json::object());
  Json rows = Json::array();
  auto row = [&](const std::string& type, const Json& exact_match, const Json& its_baseline, const Json& count) {
    rows.push_back({{"type", type}, {"exact_match", exact_match}, {"baseline", its_baseline}, {"count", count}});
  };
  row("all answers", eval["exact_match"], share(baseline), eval.value("count", Json()));
  for (const auto& [type, result] : by_type.items()) {
    Json own_baseline = share(baseline_by_type.value(type, Json()));
    if (own_baseline.is_null() && result.is_object()) own_baseline = share(result.value("baseline", Json()));
    row(type, share(result), own_baseline, result.is_object() ? result.value("count", Json()) : Json());
  }
  return {{"rows", rows}};
}

Json make_examples(const Json& eval, const Json& samples, const Path& output) {
  const Json given = eval.is_object() && !eval.value("examples", Json::array()).empty() ? eval["examples"] : samples;
  Json examples = Json::array();
  for (const Json& example : given) {
    if (examples.size() == kReportExamples) break;
    Json pictures = Json::array();
    for (const Json& image : example.value("images", Json::array())) {
      if (std::string uri = picture_data_uri(image.get<std::string>(), output); !uri.empty()) pictures.push_back(uri);
    }
    const std::string expected = example.value("expected", ""), predicted = example.value("predicted", "");
    examples.push_back({{"pictures", pictures},
                        {"question", example.value("question", "")},
                        {"expected", expected},
                        {"predicted", predicted},
                        {"correct", example.value("correct", expected == predicted)},
                        {"type", example.value("type", "")}});
  }
  return examples;
}

}  // namespace

void write_run_facts(const Path& output, const std::vector<std::pair<std::string, std::string>>& facts) {
  Json json = Json::object();
  for (const auto& [label, value] : facts) json["facts"][label] = value;
  file::write(output / "run.json", json.dump(1) + "\n");
}

Json report_data(const Path& output) {
  const SeriesByName series = read_metrics(output / "metrics.jsonl");
  const Json eval = read_optional_json(output / "eval.json"), samples = read_optional_json(output / "samples.json");
  const Json run = read_optional_json(output / "run.json");
  const Path config = output / "config.yaml";
  try {
    return {{"title", std::filesystem::absolute(output).lexically_normal().filename().string()},
            {"made", fmt::format("{:%Y-%m-%d %H:%M}", fmt::localtime(std::time(nullptr)))},
            {"tiles", make_tiles(series, eval)},
            {"charts", make_charts(series)},
            {"eval", make_eval(eval)},
            {"examples", make_examples(eval, samples, output)},
            {"facts", run.is_object() ? run.value("facts", Json::object()) : Json::object()},
            {"config", std::filesystem::exists(config) ? file::read(config) : ""}};
  } catch (const Json::exception& error) {
    throw DataError("eval.json, samples.json or run.json in {} is not as the report expects it: {}", output.string(),
                    error.what());
  }
}

std::filesystem::path write_report(const Path& output) {
  const std::string page =
      fill_page(kReportPage, kReportPlaceholder, report_data(output).dump(-1, ' ', false, Json::error_handler_t::replace));
  const Path path = output / "report.html";
  file::write(path, page);
  return path;
}

}  // namespace hyperparallel::train
