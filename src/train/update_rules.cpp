#include "train/update_rules.h"

#include "base/error.h"
#include "base/glob.h"

namespace hyperparallel::train {

std::vector<engine::ParameterSpec> optimized_specs(const std::vector<engine::ParameterSpec>& specs) {
  std::vector<engine::ParameterSpec> optimized;
  for (const engine::ParameterSpec& spec : specs) {
    if (spec.use != engine::ParameterUse::kState && spec.trainable) optimized.push_back(spec);
  }
  return optimized;
}

std::vector<optim::ParameterSettings> parameter_settings(const Config& config, const std::vector<engine::ParameterSpec>& specs) {
  const OptimizerSection& optimizer = config.optimizer;
  const std::vector<engine::ParameterSpec> optimized = optimized_specs(specs);
  std::vector<optim::GroupRule> rules;
  for (const OptimizerGroup& group : optimizer.groups) {
    std::optional<size_t> schedule;
    if (group.schedule) {
      const auto named = std::ranges::find(optimizer.schedules, *group.schedule, &NamedSchedule::name);
      schedule = 1 + static_cast<size_t>(named - optimizer.schedules.begin());
    }
    rules.push_back({group.match, group.optimizer, group.lr_scale, group.weight_decay, schedule});
    const auto matches = [&](const engine::ParameterSpec& spec) { return glob_matches(group.match, spec.name); };
    const auto found = std::ranges::find_if(specs, matches);
    if (found != specs.end() && std::ranges::none_of(optimized, matches))
      throw ConfigError(
          "optimizer group `{}` matches {} and no other, which has no gradient (optimizer.router_bias_rate moves it)",
          group.match, found->name);
  }
  return optim::resolve_groups(optimized, {optimizer.name == OptimizerName::kMuon, optimizer.weight_decay}, rules);
}

namespace {

at::ScalarType type_of(StateDtype dtype) {
  return dtype == StateDtype::kBFloat16 ? at::kBFloat16 : at::kFloat;
}

}  // namespace

optim::RuleSettings rule_settings(const Config& config) {
  const OptimizerSection& c = config.optimizer;
  optim::RuleSettings rules;
  rules.adamw = {c.betas.at(0), c.betas.at(1), c.eps, type_of(c.moments)};
  rules.muon.momentum = c.muon.momentum;
  rules.muon.update_scale = c.muon.update_scale;
  rules.muon.compute = config.train.dtype == Dtype::kFloat64 ? at::kDouble : type_of(c.muon.dtype);
  rules.head_wise = c.muon.head_wise;
  rules.sinkhorn = {.momentum = c.sinkhorn.momentum,
                    .steps = static_cast<int>(c.sinkhorn.steps),
                    .threshold = c.sinkhorn.threshold,
                    .update_scale = c.sinkhorn.update_scale};
  rules.sparse_adam = {c.sparse_adam.betas.at(0), c.sparse_adam.betas.at(1), c.sparse_adam.eps};
  if (c.state_storage == StateStorage::kMmap) rules.state_folder = c.state_folder.empty() ? config.train.output : c.state_folder;
  return rules;
}

}  // namespace hyperparallel::train
