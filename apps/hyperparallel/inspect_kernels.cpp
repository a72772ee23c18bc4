#include <fmt/format.h>

#include "arguments.h"
#include "inspect.h"
#include "model_argument.h"
#include "train/run_model.h"

namespace hyperparallel {

int inspect_kernels(const std::vector<std::string>& arguments) {
  CLI::App app("Show which implementation each operation of a model takes on this machine, and why not a faster one",
               "hyperparallel inspect kernels");
  std::string path, dtype = "float32";
  app.add_option("CONFIG", path, "config.json of a model, or a YAML configuration")->required();
  app.add_option("--dtype", dtype, "of computation: float32 | bfloat16")->check(CLI::IsMember({"float32", "bfloat16"}));
  app.allow_extras();
  app.footer("The keys of a configuration's kernels section may follow: --kernels.moe=reference");
  if (!parse_arguments(app, arguments)) return 0;
  models::ProgramOptions options;
  train::choose_kernels(train::config_of_overrides(app.remaining(), {"kernels"}).kernels, options);
  if (dtype == "bfloat16") options.compute = at::kBFloat16;
  const std::vector<models::KernelCall> calls = read_model_argument(path)->build(options, /*tokenizer=*/nullptr)->kernel_calls();
  if (calls.empty()) fmt::print("every operation of this model has one implementation\n");
  for (const models::KernelCall& call : calls) {
    fmt::print("{:<14} {:<40} {:>4} calls  {}\n", call.operation, call.shape, call.calls, to_string(call.choice.taken));
    for (const kernels::Candidate& candidate : call.choice.passed_over)
      fmt::print("  not {}: {}\n", to_string(candidate.implementation), candidate.refusal);
  }
  return 0;
}

}  // namespace hyperparallel
