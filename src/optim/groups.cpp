#include "optim/groups.h"

#include "base/error.h"
#include "base/glob.h"

namespace hyperparallel::optim {
namespace {

using Kind = engine::UpdateHint::Kind;

ParameterSettings default_of(const engine::ParameterSpec& parameter, const GroupDefaults& defaults) {
  if (!defaults.as_declared && parameter.use == engine::ParameterUse::kTable) return {Rule::kSparseAdam, 1, 0};
  if (!defaults.as_declared) return {Rule::kAdamW, 1, parameter.shape.size() >= 2 ? defaults.weight_decay : 0};
  const engine::UpdateHint& hint = parameter.update;
  const Rule rule = hint.kind == Kind::kMatrix ? Rule::kMuon : hint.kind == Kind::kTable ? Rule::kSinkhorn : Rule::kAdamW;
  return {rule, hint.lr_scale, hint.decays ? defaults.weight_decay : 0};
}

void check(const engine::ParameterSpec& parameter, const ParameterSettings& settings, const std::string& match) {
  const size_t dims = parameter.shape.size();
  if (settings.rule == Rule::kMuon && dims < 2)
    throw ConfigError("optimizer group `{}`: muon is for matrices, but {} has {} dimension", match, parameter.name, dims);
  if (settings.rule == Rule::kSinkhorn && dims != 2)
    throw ConfigError("optimizer group `{}`: sinkhorn is for tables of two dimensions, but {} has {}", match, parameter.name,
                      dims);
  const bool has_decay = settings.rule == Rule::kAdamW || settings.rule == Rule::kMuon;
  if (!has_decay && settings.weight_decay != 0)
    throw ConfigError("optimizer group `{}`: {} has no weight decay, but {} has {}", match, to_string(settings.rule),
                      parameter.name, settings.weight_decay);
  const bool is_table = parameter.use == engine::ParameterUse::kTable;
  if (settings.rule == Rule::kSparseAdam && !is_table)
    throw ConfigError(
        "optimizer group `{}`: sparse_adam is for tables outside of device memory (model.engram_storage: host or mmap), and {} "
        "is "
        "none",
        match, parameter.name);
  if (has_decay && is_table)
    throw ConfigError(
        "optimizer group `{}`: {} needs all rows, but {} is a table outside of device memory; accepted: sparse_adam, sinkhorn",
        match, to_string(settings.rule), parameter.name);
}

}  // namespace

std::string to_string(Rule rule) {
  switch (rule) {
    case Rule::kAdamW:
      return "adamw";
    case Rule::kMuon:
      return "muon";
    case Rule::kSinkhorn:
      return "sinkhorn";
    case Rule::kSparseAdam:
      return "sparse_adam";
  }
  HP_CHECK(false, "rule {}", static_cast<int>(rule));
}

std::vector<ParameterSettings> resolve_groups(std::span<const engine::ParameterSpec> parameters, const GroupDefaults& defaults,
                                              std::span<const GroupRule> rules) {
  std::vector<ParameterSettings> settings;
  for (const engine::ParameterSpec& parameter : parameters) settings.push_back(default_of(parameter, defaults));
  std::vector<const GroupRule*> last(parameters.size());
  for (const GroupRule& rule : rules) {
    bool matched = false;
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (!glob_matches(rule.match, parameters[i].name)) continue;
      matched = true;
      last[i] = &rule;
      if (rule.rule == Rule::kSinkhorn || rule.rule == Rule::kSparseAdam) settings[i].weight_decay = 0;
      settings[i].rule = rule.rule.value_or(settings[i].rule);
      settings[i].lr_scale = rule.lr_scale.value_or(settings[i].lr_scale);
      settings[i].weight_decay = rule.weight_decay.value_or(settings[i].weight_decay);
      settings[i].schedule = rule.schedule.value_or(settings[i].schedule);
    }
    if (!matched)
      throw ConfigError("optimizer group `{}` matches none of the model's {} parameters", rule.match, parameters.size());
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (last[i] != nullptr) check(parameters[i], settings[i], last[i]->match);
  }
  return settings;
}

}  // namespace hyperparallel::optim
