#include "plan.h"

#include <fmt/format.h>

#include "base/error.h"
#include "dist/launch.h"
#include "local_ranks.h"
#include "models/deepseek_v41/declarations.h"
#include "models/deepseek_v41/program.h"
#include "plan/plan.h"
#include "train/config.h"
#include "train/ranks.h"

namespace hyperparallel {
namespace {

// Takes a flag out of the arguments.
bool take_flag(std::vector<std::string>& arguments, const std::string& flag) {
  return std::erase(arguments, flag) > 0;
}

plan::Plan plan_of(const train::Config& config, int64_t ranks) {
  namespace model = models::deepseek_v41;
  const model::ModelConfig& architecture = config.model.architecture;
  model::ProgramOptions options;
  options.layout = train::layout_of(config, ranks);
  const model::ModelProgram program = model::build_program(architecture, options);
  const int64_t data_ranks = options.layout.size("dp"), tokens = config.train.local_batch_size * config.data.seq_len;
  plan::PlanRequest request;
  request.program = &program.program;
  request.without_forward = model::draft_parameters(architecture.text);
  request.layout = options.layout;
  request.symbols = model::symbol_sizes(architecture, options.layout, tokens, /*patches=*/0);
  request.compute_bytes = config.train.dtype == train::Dtype::kBFloat16  ? 2
                          : config.train.dtype == train::Dtype::kFloat64 ? 8
                                                                         : 4;
  request.master_bytes = config.train.dtype == train::Dtype::kFloat64 ? 8 : 4;
  request.micro_batches = std::max<int64_t>(1, config.train.global_batch_size / (config.train.local_batch_size * data_ranks));
  request.reshard = config.parallel.reshard_after_forward && options.layout.size("fsdp_shard") > 1;
  request.part_of = model::part_of;
  return plan::make_plan(request);
}

}  // namespace

int plan_layout(const std::vector<std::string>& all_arguments) {
  std::vector<std::string> arguments = all_arguments;
  const int64_t ranks = take_ranks(arguments).value_or(1);
  const bool as_json = take_flag(arguments, "--json");
  const auto config = train::config_from_arguments(arguments, "hyperparallel plan CONFIG [--ranks N] [--json]");
  if (!config) return 0;
  const plan::Plan plan = plan_of(*config, ranks);
  fmt::print("{}", as_json ? plan::to_json(plan) : plan::to_table(plan));
  return 0;
}

}  // namespace hyperparallel
