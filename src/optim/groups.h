// Which optimizer, learning rate and weight decay each parameter gets: defaults, then rules by glob on names.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "optim/optimizer.h"

namespace hyperparallel::optim {

struct AdamWSettings {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-20;
};

// One entry of `optimizer.groups`. Rules are applied in order; each sets what it names, later ones win.
struct GroupRule {
  std::string match;                          // glob over the whole parameter name (base/glob.h)
  std::optional<std::string> optimizer = {};  // by name; `adamw`
  std::optional<double> lr_scale = {};        // factor on the scheduled learning rate
  std::optional<double> weight_decay = {};    // decoupled: p *= 1 - lr * weight_decay
};

// What a rule-less parameter gets: `optimizer`, lr_scale 1, `weight_decay` if it has two or more dimensions, else none.
struct GroupDefaults {
  std::string optimizer = "adamw";
  double weight_decay = 0.1;
};

struct ParameterSettings {
  std::string optimizer;
  double lr_scale = 1;
  double weight_decay = 0;
};

// The settings of each parameter, in order. ConfigError for a rule that matches no parameter.
std::vector<ParameterSettings> resolve_groups(std::span<const OptimizedParameter> parameters, const GroupDefaults& defaults,
                                              std::span<const GroupRule> rules);

// The optimizer of all `parameters` with their settings. ConfigError for an unknown optimizer name.
std::unique_ptr<Optimizer> make_optimizer(std::span<const OptimizedParameter> parameters,
                                          std::span<const ParameterSettings> settings, const AdamWSettings& adamw);

}  // namespace hyperparallel::optim
