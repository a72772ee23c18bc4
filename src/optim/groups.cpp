#include "optim/groups.h"

#include "base/error.h"
#include "base/glob.h"
#include "optim/adamw.h"

namespace hyperparallel::optim {

std::vector<ParameterSettings> resolve_groups(std::span<const OptimizedParameter> parameters, const GroupDefaults& defaults,
                                              std::span<const GroupRule> rules) {
  std::vector<ParameterSettings> settings;
  for (const OptimizedParameter& parameter : parameters) {
    settings.push_back({defaults.optimizer, 1, parameter.value.dim() >= 2 ? defaults.weight_decay : 0});
  }
  for (const GroupRule& rule : rules) {
    bool matched = false;
    for (size_t i = 0; i < parameters.size(); ++i) {
      if (!glob_matches(rule.match, parameters[i].name)) continue;
      matched = true;
      settings[i].optimizer = rule.optimizer.value_or(settings[i].optimizer);
      settings[i].lr_scale = rule.lr_scale.value_or(settings[i].lr_scale);
      settings[i].weight_decay = rule.weight_decay.value_or(settings[i].weight_decay);
    }
    if (!matched)
      throw ConfigError("optimizer group `{}` matches none of the model's {} parameters", rule.match, parameters.size());
  }
  return settings;
}

std::unique_ptr<Optimizer> make_optimizer(std::span<const OptimizedParameter> parameters,
                                          std::span<const ParameterSettings> settings, const AdamWSettings& adamw) {
  HP_CHECK(parameters.size() == settings.size(), "{} parameters, {} settings", parameters.size(), settings.size());
  for (size_t i = 0; i < settings.size(); ++i) {
    if (settings[i].optimizer == "adamw") continue;
    throw ConfigError("parameter `{}` asks for the optimizer `{}`; accepted: adamw", parameters[i].name, settings[i].optimizer);
  }
  return std::make_unique<AdamW>(parameters, settings, adamw);
}

}  // namespace hyperparallel::optim
