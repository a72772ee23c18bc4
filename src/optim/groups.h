// Which update rule, learning rate and weight decay each parameter gets: defaults, then rules by glob on names.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/parameter.h"

namespace hyperparallel::optim {

enum class Rule { kAdamW, kMuon, kSinkhorn, kSparseAdam };
std::string to_string(Rule rule);  // "adamw", "muon", "sinkhorn", "sparse_adam"

// One entry of `optimizer.groups`. They are applied in order; each sets what it names, later ones win.
struct GroupRule {
  std::string match;  // glob over the whole parameter name (base/glob.h)
  std::optional<Rule> rule = {};
  std::optional<double> lr_scale = {};      // factor on the scheduled learning rate
  std::optional<double> weight_decay = {};  // decoupled: p *= 1 - lr * weight_decay
  std::optional<size_t> schedule = {};      // which of the run's learning rates; 0: its first
};

// What a parameter gets that no entry matches.
struct GroupDefaults {
  // false: AdamW for all, decay for two or more dimensions, lr_scale 1; SparseAdam for tables whose rows have gradients
  // (ParameterUse::kTable). true: what the parameter's adapter declares (engine::UpdateHint) - Muon for matrices, Sinkhorn
  // balancing for tables, AdamW for the rest.
  bool as_declared = false;
  double weight_decay = 0.1;
};

struct ParameterSettings {
  Rule rule = Rule::kAdamW;
  double lr_scale = 1;
  double weight_decay = 0;
  size_t schedule = 0;
};

// The settings of each parameter, in order. Throws ConfigError for an entry that matches no parameter, Muon for one without two
// dimensions, Sinkhorn balancing for other than two, a decay with it or with SparseAdam (the rules have none), SparseAdam for
// what is no ParameterUse::kTable, and Muon or AdamW for what is one.
std::vector<ParameterSettings> resolve_groups(std::span<const engine::ParameterSpec> parameters, const GroupDefaults& defaults,
                                              std::span<const GroupRule> rules);

}  // namespace hyperparallel::optim
