// How a configuration's `optimizer` section updates each parameter.
#pragma once

#include <vector>

#include "optim/mix.h"
#include "train/config.h"

namespace hyperparallel::train {

// Those that an optimizer has: all but router biases.
std::vector<engine::ParameterSpec> optimized_specs(const std::vector<engine::ParameterSpec>& specs);
// Of those of all `specs` that an optimizer has, in their order. Throws ConfigError as optim::resolve_groups.
std::vector<optim::ParameterSettings> parameter_settings(const Config& config, const std::vector<engine::ParameterSpec>& specs);
optim::RuleSettings rule_settings(const Config& config);

}  // namespace hyperparallel::train
