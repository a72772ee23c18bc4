// The optimizer of a run: every parameter under its own update rule, over all ranks.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "engine/layout.h"
#include "optim/adamw.h"
#include "optim/muon.h"
#include "optim/sinkhorn.h"
#include "optim/sparse_adam.h"

namespace hyperparallel::optim {

struct RuleSettings {
  AdamWSettings adamw;
  MuonSettings muon;
  bool head_wise = true;  // Muon takes the blocks of rows that a parameter declares as matrices for themselves
  SinkhornSettings sinkhorn;
  SparseAdamSettings sparse_adam;
  std::filesystem::path state_folder = {};  // of the files that hold the state; empty: it is in memory. Not of tables with rows
};

// What a rule does with a parameter, for people: "muon, 6 heads of [32, 28]", "sinkhorn", "adamw".
std::string describe(const engine::ParameterSpec& parameter, const ParameterSettings& settings, const RuleSettings& rules);
// Bytes that a rule keeps for each element of a parameter whose master is of that type.
int64_t state_bytes(Rule rule, const RuleSettings& rules, at::ScalarType master);

class MixedOptimizer : public Optimizer {
 public:
  // `parameters[i]`: this rank's rows of the parameter `specs[i]`, which `engine::place` gives for `layout`. `world`: all ranks
  // of the layout. Every rank makes it with the same specs and settings. Throws ConfigError for Sinkhorn balancing of a parameter
  // that the layout cuts along its columns.
  MixedOptimizer(std::span<const OptimizedParameter> parameters, std::span<const engine::ParameterSpec> specs,
                 std::span<const ParameterSettings> settings, const RuleSettings& rules, const engine::Layout& layout,
                 std::shared_ptr<dist::Group> world);

  // Every rank calls it; a parameter has a gradient on all ranks or on none. `rates`: learning rates by
  // ParameterSettings::schedule; one for all.
  void step(std::span<const OptimizedParameter> parameters, std::span<const double> rates, double coefficient);
  void step(std::span<const OptimizedParameter> parameters, double lr, double coefficient) override;
  std::vector<StateTensor> state() const override;
  void on_loaded() override;

  // An update is near: state in files is brought into memory while something else runs.
  void prefetch() { memory_.prefetch(); }

  // Of the last step, by rule.
  const std::map<std::string, double>& seconds() const { return seconds_; }

 private:
  struct Leaf {
    Rule rule;
    size_t schedule;
    std::vector<size_t> which;  // of the parameters
    std::unique_ptr<Optimizer> optimizer;
  };
  StateMemory memory_;
  std::vector<Leaf> leaves_;
  std::map<std::string, double> seconds_;
};

}  // namespace hyperparallel::optim
