#include "train/layout_plan.h"

#include "base/error.h"
#include "train/ranks.h"
#include "train/run_model.h"
#include "train/update_rules.h"

namespace hyperparallel::train {

engine::ScheduleOptions schedule_options(const Config& config, const engine::Layout& layout, int64_t rows) {
  const int64_t of_micro_batches = config.train.local_batch_size * layout.size("dp");
  if (rows == 0) rows = config.train.global_batch_size;
  if (rows % of_micro_batches != 0) {
    throw ConfigError("train.global_batch_size {} is not a multiple of train.local_batch_size {} x {} data-parallel ranks", rows,
                      config.train.local_batch_size, layout.size("dp"));
  }
  engine::ScheduleOptions options;
  options.micro_batches = static_cast<int>(rows / of_micro_batches);
  for (const std::string& axis : dist::Mesh::axes()) options.axis_sizes[axis] = layout.size(axis);
  options.release_after_forward = config.parallel.reshard_after_forward && layout.size("fsdp_shard") > 1;
  options.reduce_every_micro_batch = options.release_after_forward;
  options.recompute = recompute_policy(config.recompute);
  return options;
}

plan::Plan plan_of(const Config& config, int64_t ranks, models::Routing routing, const models::PlannedPictures& pictures) {
  const models::Architecture& architecture = *config.model.architecture;
  const models::ProgramOptions options = program_options(config, layout_of(config, ranks));
  const auto model = architecture.build(options, /*tokenizer=*/nullptr);
  plan::PlanRequest request;
  request.program = &model->program();
  if (config.train.loss.draft.weight == 0) request.without_forward = architecture.parameters_without_forward();
  request.layout = options.layout;
  request.symbols = architecture.symbol_sizes(options, config.train.local_batch_size * config.data.seq_len, pictures, routing);
  request.compute_bytes = static_cast<int64_t>(at::elementSize(scalar_type(config.train.dtype)));
  const at::ScalarType master = config.train.dtype == Dtype::kFloat64 ? at::kDouble : at::kFloat;
  request.master_bytes = static_cast<int64_t>(at::elementSize(master));
  request.schedule = schedule_options(config, options.layout);
  request.part_of = [&](const std::string& parameter) { return architecture.part_of(parameter); };
  make_schedule(*request.program, request.schedule);  // refuses globs that match nothing, as a run does
  const auto optimized = optimized_specs(request.program->parameters);
  const auto settings = parameter_settings(config, request.program->parameters);
  const optim::RuleSettings rules = rule_settings(config);
  request.state_in_files = config.optimizer.state_storage == StateStorage::kMmap;
  for (size_t i = 0; i < optimized.size(); ++i) {
    request.updates[optimized[i].name] = {optim::describe(optimized[i], settings[i], rules),
                                          optim::state_bytes(settings[i].rule, rules, master)};
  }
  return plan::make_plan(request);
}

}  // namespace hyperparallel::train
