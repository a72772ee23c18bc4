#include <fmt/format.h>

#include "arguments.h"
#include "inspect.h"
#include "model_argument.h"

namespace hyperparallel {
int inspect_model(const std::vector<std::string>& arguments) {
  CLI::App app("Show a model's layers, parameters by unit and, on request, its program", "hyperparallel inspect model");
  std::string path;
  bool program = false, all = false;
  app.add_option("CONFIG", path, "config.json of a model, or a YAML configuration")->required();
  app.add_flag("--program", program, "list the segments and exchanges of a step");
  app.add_flag("--all", all, "list every parameter");
  if (!parse_arguments(app, arguments)) return 0;
  const models::ArchitecturePtr architecture = read_model_argument(path);
  const auto model = architecture->build({}, /*tokenizer=*/nullptr);
  if (program) {
    fmt::print("{}", model->program().describe());
    return 0;
  }
  fmt::print("{}", architecture->summary());
  int64_t total = 0;
  fmt::print("  {:<28} {:>16}\n", "unit", "parameters");
  for (const engine::Unit& unit : model->program().units) {
    int64_t count = 0;
    for (engine::ParameterId id : unit.parameters) {
      const engine::ParameterSpec& spec = model->program().parameters[id.index];
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
