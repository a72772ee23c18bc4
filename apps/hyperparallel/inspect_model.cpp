#include <fmt/format.h>

#include "arguments.h"
#include "inspect.h"
#include "model_argument.h"
#include "models/deepseek_v41/program.h"

namespace hyperparallel {
namespace {

const char* mode_name(models::deepseek_v41::LayerMode mode) {
  switch (mode) {
    case models::deepseek_v41::LayerMode::kWindow:
      return "window";
    case models::deepseek_v41::LayerMode::kFull:
      return "full";
    case models::deepseek_v41::LayerMode::kReindex:
      return "reindex";
    case models::deepseek_v41::LayerMode::kReuse:
      return "reuse";
  }
  return "?";
}

void print_layers(const models::deepseek_v41::TextConfig& text) {
  for (int64_t layer = 0; layer < text.num_hidden_layers; ++layer) {
    fmt::print("  layer {:<3} {:<8}", layer, mode_name(text.mode(layer)));
    if (text.ratio(layer) > 0)
      fmt::print(" ratio {}, KV of layer {}, choice of layer {}", text.ratio(layer), text.kv_source(layer),
                 text.index_source(layer));
    fmt::print("{}{}\n", layer == text.candidate_source_layer_id ? ", candidate source" : "",
               text.engram_index(layer) ? ", Engram" : "");
  }
}

}  // namespace

int inspect_model(const std::vector<std::string>& arguments) {
  CLI::App app("Show a model's layers, parameters by unit and, on request, its program", "hyperparallel inspect model");
  std::string path;
  bool program = false, all = false;
  app.add_option("CONFIG", path, "config.json of a model, or a YAML configuration")->required();
  app.add_flag("--program", program, "list the segments and exchanges of a step");
  app.add_flag("--all", all, "list every parameter");
  if (!parse_arguments(app, arguments)) return 0;
  const models::deepseek_v41::ModelProgram model = build_program(read_model_argument(path), {});
  if (program) {
    fmt::print("{}", model.program.describe());
    return 0;
  }
  print_layers(model.config.text);
  int64_t total = 0;
  fmt::print("  {:<28} {:>16}\n", "unit", "parameters");
  for (const engine::Unit& unit : model.program.units) {
    int64_t count = 0;
    for (engine::ParameterId id : unit.parameters) {
      const engine::ParameterSpec& spec = model.program.parameters[id.index];
      int64_t elements = 1;
      for (int64_t size : spec.shape) elements *= size;
      if (all) fmt::print("    {:<48} [{}]\n", spec.name, fmt::join(spec.shape, ", "));
      count += elements;
    }
    fmt::print("  {:<28} {:>16}\n", unit.name, count);
    total += count;
  }
  fmt::print("  {:<28} {:>16}\n", "total", total);
  return 0;
}

}  // namespace hyperparallel
