#include "optim/mix.h"

#include <fmt/ranges.h>

#include <set>

#include "base/clock.h"
#include "base/error.h"
#include "base/trace.h"

namespace hyperparallel::optim {
namespace {

using engine::ParameterSpec;

const std::vector<int64_t>& blocks_of(const ParameterSpec& parameter, const RuleSettings& rules) {
  static const std::vector<int64_t> whole;
  return rules.head_wise ? parameter.update.block_rows : whole;
}

std::vector<MatrixSource> sources_of(std::span<const ParameterSpec> parameters, const RuleSettings& rules,
                                     const engine::Layout& layout) {
  std::vector<MatrixSource> sources;
  for (const ParameterSpec& parameter : parameters)
    sources.push_back({{}, matrices_of(parameter.shape, blocks_of(parameter, rules))});
  engine::Layout other = layout;
  for (other.rank = 0; other.rank < layout.mesh.world_size(); ++other.rank) {
    for (size_t i = 0; i < parameters.size(); ++i) sources[i].owned.push_back(engine::place(parameters[i], other).owned);
  }
  return sources;
}

template <class T>
std::vector<T> chosen(std::span<const T> all, const std::vector<size_t>& which) {
  std::vector<T> some;
  for (size_t i : which) some.push_back(all[i]);
  return some;
}

}  // namespace

std::string describe(const ParameterSpec& parameter, const ParameterSettings& settings, const RuleSettings& rules) {
  std::string text = to_string(settings.rule);
  if (settings.rule == Rule::kMuon) {
    const std::vector<Box> matrices = matrices_of(parameter.shape, blocks_of(parameter, rules));
    const bool blocks = !blocks_of(parameter, rules).empty();
    std::map<std::vector<int64_t>, int64_t> shapes;
    for (const Box& box : matrices) ++shapes[{box.size.end() - 2, box.size.end()}];
    for (const auto& [shape, count] : shapes) {
      if (matrices.size() == 1) continue;
      const std::string name = blocks && count > 1 ? parameter.update.block_name + "s " : "";
      text += fmt::format(", {} {}of [{}]", count, name, fmt::join(shape, ", "));
    }
  }
  if (settings.lr_scale != 1) text += fmt::format(", lr x {}", settings.lr_scale);
  if (settings.weight_decay != 0) text += fmt::format(", decay {}", settings.weight_decay);
  return text;
}

int64_t state_bytes(Rule rule, const RuleSettings& rules, at::ScalarType master) {
  const at::ScalarType moments = master == at::kDouble ? master : rules.adamw.moments;
  if (rule == Rule::kAdamW) return 2 * static_cast<int64_t>(at::elementSize(moments));
  return (rule == Rule::kSparseAdam ? 2 : 1) * static_cast<int64_t>(at::elementSize(master));
}

MixedOptimizer::MixedOptimizer(std::span<const OptimizedParameter> parameters, std::span<const ParameterSpec> specs,
                               std::span<const ParameterSettings> settings, const RuleSettings& rules,
                               const engine::Layout& layout, std::shared_ptr<dist::Group> world)
    : memory_(rules.state_folder) {
  HP_CHECK(parameters.size() == settings.size() && specs.size() == settings.size(), "{} parameters, {} specs, {} settings",
           parameters.size(), specs.size(), settings.size());
  std::set<std::pair<Rule, size_t>> kinds;
  for (const ParameterSettings& s : settings) kinds.insert({s.rule, s.schedule});
  for (const auto& [rule, schedule] : kinds) {
    Leaf leaf{rule, schedule, {}, nullptr};
    for (size_t i = 0; i < settings.size(); ++i) {
      if (settings[i].rule == rule && settings[i].schedule == schedule) leaf.which.push_back(i);
    }
    const auto own = chosen(parameters, leaf.which);
    const auto own_specs = chosen(specs, leaf.which);
    const auto own_settings = chosen(settings, leaf.which);
    if (rule == Rule::kAdamW) {
      leaf.optimizer = std::make_unique<AdamW>(own, own_settings, rules.adamw, &memory_);
    } else if (rule == Rule::kSparseAdam) {
      leaf.optimizer = std::make_unique<SparseAdam>(own, own_settings, rules.sparse_adam, world);
    } else if (rule == Rule::kMuon) {
      leaf.optimizer =
          std::make_unique<Muon>(own, own_settings, rules.muon, sources_of(own_specs, rules, layout), world, &memory_);
    } else {
      std::vector<TableRows> rows;
      for (const ParameterSpec& spec : own_specs) {
        if (engine::place(spec, layout).part.size[1] != spec.shape[1])
          throw ConfigError("sinkhorn needs whole rows, but {} is cut along its columns over {}; accepted for it: muon, adamw",
                            spec.name, spec.cut_axis);
        rows.push_back({spec.shape[0], layout.is_primary(spec)});
      }
      leaf.optimizer = std::make_unique<Sinkhorn>(own, own_settings, rules.sinkhorn, rows, world, &memory_);
    }
    leaves_.push_back(std::move(leaf));
  }
}

void MixedOptimizer::step(std::span<const OptimizedParameter> parameters, double lr, double coefficient) {
  step(parameters, std::span(&lr, 1), coefficient);
}

void MixedOptimizer::step(std::span<const OptimizedParameter> parameters, std::span<const double> rates, double coefficient) {
  seconds_.clear();
  for (const Leaf& leaf : leaves_) {
    HP_CHECK(leaf.schedule < rates.size(), "schedule {} of {}", leaf.schedule, rates.size());
    trace::Scope scope(to_string(leaf.rule), "optimizer");
    const double begin = monotonic_seconds();
    leaf.optimizer->step(chosen(parameters, leaf.which), rates[leaf.schedule], coefficient);
    seconds_[to_string(leaf.rule)] += monotonic_seconds() - begin;
  }
  memory_.rest();
}

std::vector<StateTensor> MixedOptimizer::state() const {
  std::vector<StateTensor> all;
  for (const Leaf& leaf : leaves_) {
    for (StateTensor& tensor : leaf.optimizer->state()) all.push_back(std::move(tensor));
  }
  return all;
}

void MixedOptimizer::on_loaded() {
  for (const Leaf& leaf : leaves_) leaf.optimizer->on_loaded();
}

}  // namespace hyperparallel::optim
