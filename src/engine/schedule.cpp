#include "engine/schedule.h"

#include <algorithm>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/glob.h"

namespace hyperparallel::engine {

const char* to_string(ActionKind kind) {
  switch (kind) {
    case ActionKind::kForward:
      return "forward";
    case ActionKind::kRecompute:
      return "recompute";
    case ActionKind::kBackward:
      return "backward";
    case ActionKind::kLaunch:
      return "launch";
    case ActionKind::kWait:
      return "wait";
    case ActionKind::kLaunchTranspose:
      return "launch transpose";
    case ActionKind::kWaitTranspose:
      return "wait transpose";
    case ActionKind::kLaunchGather:
      return "launch gather";
    case ActionKind::kWaitGather:
      return "wait gather";
    case ActionKind::kReleaseUnit:
      return "release unit";
    case ActionKind::kLaunchReduce:
      return "launch reduce";
    case ActionKind::kWaitReduce:
      return "wait reduce";
    case ActionKind::kReleaseValue:
      return "release";
  }
  return "?";
}

namespace {

// Emits the actions of one step; the passes below it add units and releases.
class Builder {
 public:
  Builder(const Program& program, const ScheduleOptions& options) : program_(program), options_(options) { classify(); }

  std::vector<Action> build() {
    for (int micro_batch = 0; micro_batch < options_.micro_batches; ++micro_batch) {
      forward(micro_batch);
      if (options_.backward) backward(micro_batch);
    }
    return with_units(with_releases(std::move(actions_)));
  }

 private:
  int run_of(int region) const { return region < 0 ? -1 : region / options_.recompute.every; }

  // Whether the exchange needs no other rank in forward.
  bool is_local(const Exchange& exchange) const {
    if (exchange.kind == ExchangeKind::kEnter || exchange.kind == ExchangeKind::kSplit) return true;
    const auto size = options_.axis_sizes.find(exchange.axis);
    return size == options_.axis_sizes.end() || size->second == 1;
  }
  // The region that makes a value, anew where that is recomputed; nothing for inputs and for what other ranks sent.
  std::optional<int> made_in(int value) const {
    if (program_.segment_of[value] >= 0) return program_.segments[program_.segment_of[value]].region;
    if (program_.exchange_of[value] < 0) return {};
    const Exchange& exchange = program_.exchanges[program_.exchange_of[value]];
    return is_local(exchange) ? std::optional(exchange.region) : std::nullopt;
  }

  // Decides which segments run again and which values stay for them.
  void classify() {
    const RecomputePolicy& policy = options_.recompute;
    HP_CHECK(policy.every >= 1, "recompute runs of {} regions", policy.every);
    recomputed_.assign(program_.segments.size(), false);
    if (options_.backward && policy.mode != RecomputePolicy::Mode::kNone) {
      for (size_t s = 0; s < recomputed_.size(); ++s) recomputed_[s] = program_.segments[s].region >= 0;
    }
    kept_.assign(program_.values.size(), true);
    if (options_.backward && policy.mode != RecomputePolicy::Mode::kNone) {
      for (size_t v = 0; v < kept_.size(); ++v) {
        const auto region = made_in(static_cast<int>(v));
        if (region && *region >= 0 && program_.values[v].kind == ValueKind::kDifferentiable) kept_[v] = false;
      }
    }
    const auto leaves = [&](ValueId id, int reader_region) {
      const auto region = made_in(id.index);
      if (region && run_of(*region) != run_of(reader_region)) kept_[id.index] = true;
    };
    for (const Segment& reader : program_.segments) {
      for (ValueId id : reader.reads) leaves(id, reader.region);
    }
    for (const Exchange& exchange : program_.exchanges) leaves(exchange.input, exchange.region);
    if (policy.mode == RecomputePolicy::Mode::kSelective) {
      for (size_t v = 0; v < kept_.size(); ++v) {
        for (const std::string& glob : policy.keep) kept_[v] = kept_[v] || glob_matches(glob, program_.values[v].name);
      }
    }
  }

  void emit(ActionKind kind, int index, int micro_batch, bool keep_graph = false) {
    actions_.push_back({kind, index, micro_batch, keep_graph});
  }

  void forward(int micro_batch) {
    for (const ProgramStep& step : program_.steps) {
      if (auto* run = std::get_if<RunSegment>(&step)) {
        emit(ActionKind::kForward, run->segment, micro_batch, options_.backward && !recomputed_[run->segment]);
      } else if (auto* launch = std::get_if<LaunchExchange>(&step)) {
        emit(ActionKind::kLaunch, launch->exchange, micro_batch);
      } else {
        emit(ActionKind::kWait, std::get<WaitExchange>(step).exchange, micro_batch);
      }
    }
  }

  // Runs segment `s` again, after whatever makes the inputs it lacks.
  void recompute(int s, int micro_batch) {
    if (graph_live_[s]) return;
    graph_live_[s] = true;
    for (ValueId id : program_.segments[s].reads) make_again(id, micro_batch);
    emit(ActionKind::kRecompute, s, micro_batch, true);
  }

  void make_again(ValueId value, int micro_batch) {
    if (kept_[value.index]) return;
    if (program_.segment_of[value.index] >= 0) {
      recompute(program_.segment_of[value.index], micro_batch);
      return;
    }
    const int exchange = program_.exchange_of[value.index];
    if (repeated_[exchange]) return;
    repeated_[exchange] = true;
    make_again(program_.exchanges[exchange].input, micro_batch);
    emit(ActionKind::kLaunch, exchange, micro_batch);
    emit(ActionKind::kWait, exchange, micro_batch);
  }

  void backward(int micro_batch) {
    graph_live_.assign(program_.segments.size(), false);
    for (size_t s = 0; s < graph_live_.size(); ++s) graph_live_[s] = !recomputed_[s];
    repeated_.assign(program_.exchanges.size(), false);
    for (auto step = program_.steps.rbegin(); step != program_.steps.rend(); ++step) {
      if (auto* run = std::get_if<RunSegment>(&*step)) {
        if (!has_backward(run->segment)) continue;
        recompute(run->segment, micro_batch);
        emit(ActionKind::kBackward, run->segment, micro_batch);
      } else if (auto* launch = std::get_if<LaunchExchange>(&*step)) {
        if (differentiable(launch->exchange)) emit(ActionKind::kWaitTranspose, launch->exchange, micro_batch);
      } else {
        const int exchange = std::get<WaitExchange>(*step).exchange;
        if (differentiable(exchange)) emit(ActionKind::kLaunchTranspose, exchange, micro_batch);
      }
    }
  }

  bool has_backward(int s) const {
    const std::vector<ValueId>& makes = program_.segments[s].makes;
    return std::any_of(makes.begin(), makes.end(), [&](ValueId id) { return program_.needs_gradient[id.index]; });
  }
  bool differentiable(int exchange) const { return program_.needs_gradient[program_.exchanges[exchange].output.index]; }

  // Values an action needs live, and values it puts into the ledger.
  void uses_of(const Action& action, std::vector<int>& uses, std::vector<int>& makes) const {
    uses.clear();
    makes.clear();
    if (action.kind == ActionKind::kForward || action.kind == ActionKind::kRecompute) {
      const Segment& segment = program_.segments[action.index];
      for (ValueId id : segment.reads) uses.push_back(id.index);
      for (ValueId id : segment.makes) {
        const bool recorded = action.kind == ActionKind::kRecompute && program_.values[id.index].kind == ValueKind::kDiscrete;
        (recorded ? uses : makes).push_back(id.index);
      }
    } else if (action.kind == ActionKind::kLaunch) {
      const Exchange& exchange = program_.exchanges[action.index];
      uses.push_back(exchange.input.index);
      for (ValueId id : {exchange.rows.value, exchange.receive.value}) {
        if (id.valid()) uses.push_back(id.index);
      }
    } else if (action.kind == ActionKind::kWait || action.kind == ActionKind::kLaunchTranspose) {
      const Exchange& exchange = program_.exchanges[action.index];
      if (exchange.order.valid()) uses.push_back(exchange.order.index);
      if (action.kind == ActionKind::kLaunchTranspose) {
        for (ValueId id : {exchange.rows.value, exchange.receive.value}) {
          if (id.valid()) uses.push_back(id.index);
        }
        return;
      }
      makes.push_back(program_.exchanges[action.index].output.index);
    }
  }

  // Puts a release behind the last use of every life of a value. A life starts where the value is made (again); inputs live from
  // the start.
  std::vector<Action> with_releases(std::vector<Action> actions) const {
    std::vector<std::vector<Action>> after(actions.size());
    std::map<std::pair<int, int>, size_t> last;  // (value, micro-batch) -> action of the last use in this life
    std::vector<int> uses, makes;
    auto end_life = [&](std::pair<int, int> key) {
      after[last.at(key)].push_back({ActionKind::kReleaseValue, key.first, key.second});
      last.erase(key);
    };
    for (size_t i = 0; i < actions.size(); ++i) {
      const int micro_batch = actions[i].micro_batch;
      uses_of(actions[i], uses, makes);
      for (int value : uses) last[{value, micro_batch}] = i;
      for (int value : makes) {
        const std::pair<int, int> key{value, micro_batch};
        if (last.contains(key)) end_life(key);
        last[key] = i;
      }
    }
    while (!last.empty()) end_life(last.begin()->first);
    std::vector<Action> result;
    for (size_t i = 0; i < actions.size(); ++i) {
      result.push_back(actions[i]);
      result.insert(result.end(), after[i].begin(), after[i].end());
    }
    return result;
  }

  // A stretch of actions in which a unit's compute copies are there.
  struct Life {
    int unit;
    size_t first, last;
  };

  // Lives of units by their first action: one for the whole step, or one for every forward and every backward.
  std::vector<Life> lives_of(const std::vector<Action>& actions) const {
    std::map<std::pair<int, int>, Life> lives;
    for (size_t i = 0; i < actions.size(); ++i) {
      const Action& action = actions[i];
      const bool is_backward = action.kind == ActionKind::kBackward || action.kind == ActionKind::kRecompute;
      if (action.kind != ActionKind::kForward && !is_backward) continue;
      for (ParameterId id : program_.segments[action.index].parameters) {
        const int unit = program_.unit_of[id.index];
        const int life = options_.release_after_forward ? 2 * action.micro_batch + is_backward : 0;
        lives.try_emplace({unit, life}, Life{unit, i, i}).first->second.last = i;
      }
    }
    std::vector<Life> sorted;
    for (const auto& [key, life] : lives) sorted.push_back(life);
    std::stable_sort(sorted.begin(), sorted.end(), [](const Life& a, const Life& b) { return a.first < b.first; });
    return sorted;
  }

  // Gathers units before their first use and releases them after their last; sends gradients off after the last backward.
  std::vector<Action> with_units(std::vector<Action> actions) const {
    std::vector<std::vector<Action>> before(actions.size()), after(actions.size());
    const std::vector<Life> lives = lives_of(actions);
    for (size_t i = 0; i < lives.size(); ++i) {
      if (i == 0) before[lives[i].first].push_back({ActionKind::kLaunchGather, lives[i].unit, -1});
      before[lives[i].first].push_back({ActionKind::kWaitGather, lives[i].unit, -1});
      if (i + 1 < lives.size()) before[lives[i].first].push_back({ActionKind::kLaunchGather, lives[i + 1].unit, -1});
      after[lives[i].last].push_back({ActionKind::kReleaseUnit, lives[i].unit, -1});
    }
    std::map<std::pair<int, int>, size_t> last_backward;  // (unit, micro-batch)
    for (size_t i = 0; i < actions.size(); ++i) {
      if (actions[i].kind != ActionKind::kBackward) continue;
      for (ParameterId id : program_.segments[actions[i].index].parameters)
        last_backward[{program_.unit_of[id.index], actions[i].micro_batch}] = i;
    }
    for (const auto& [key, index] : last_backward) {
      const bool last = key.second + 1 == options_.micro_batches;
      if (last || options_.reduce_every_micro_batch)
        after[index].push_back({ActionKind::kLaunchReduce, key.first, key.second, false, last});
    }
    std::vector<Action> result;
    std::optional<Action> reducing;
    const auto await = [&] {
      if (reducing) result.push_back({ActionKind::kWaitReduce, reducing->index, reducing->micro_batch, false, reducing->last});
      reducing.reset();
    };
    for (size_t i = 0; i < actions.size(); ++i) {
      result.insert(result.end(), before[i].begin(), before[i].end());
      result.push_back(actions[i]);
      for (const Action& action : after[i]) {
        result.push_back(action);
        if (action.kind != ActionKind::kLaunchReduce) continue;
        await();
        reducing = action;
      }
    }
    await();
    return result;
  }

  const Program& program_;
  const ScheduleOptions& options_;
  std::vector<bool> recomputed_;  // per segment
  std::vector<bool> kept_;        // per value: at hand when backward recomputes
  std::vector<bool> graph_live_;  // per segment, while emitting one backward
  std::vector<bool> repeated_;    // per exchange, likewise
  std::vector<Action> actions_;
};

}  // namespace

std::vector<Action> build_schedule(const Program& program, const ScheduleOptions& options) {
  return Builder(program, options).build();
}

std::vector<std::string> unmatched_keep(const Program& program, const RecomputePolicy& policy) {
  std::vector<std::string> unmatched;
  for (const std::string& glob : policy.keep) {
    const bool matches = std::any_of(program.values.begin(), program.values.end(),
                                     [&](const ValueSpec& value) { return glob_matches(glob, value.name); });
    if (!matches) unmatched.push_back(glob);
  }
  return unmatched;
}

namespace {

const std::string& name_of(const Program& program, const Action& action) {
  switch (action.kind) {
    case ActionKind::kForward:
    case ActionKind::kRecompute:
    case ActionKind::kBackward:
      return program.segments[action.index].name;
    case ActionKind::kLaunch:
    case ActionKind::kWait:
    case ActionKind::kLaunchTranspose:
    case ActionKind::kWaitTranspose:
      return program.exchanges[action.index].name;
    case ActionKind::kLaunchGather:
    case ActionKind::kWaitGather:
    case ActionKind::kReleaseUnit:
    case ActionKind::kLaunchReduce:
    case ActionKind::kWaitReduce:
      return program.units[action.index].name;
    case ActionKind::kReleaseValue:
      return program.values[action.index].name;
  }
  HP_CHECK(false, "action {}", static_cast<int>(action.kind));
}

}  // namespace

std::string describe(const Program& program, const Action& action) {
  return fmt::format("{} {}{}", to_string(action.kind), name_of(program, action),
                     action.micro_batch < 0 ? "" : fmt::format(" #{}", action.micro_batch));
}

std::string describe(const Program& program, const std::vector<Action>& schedule) {
  std::string text;
  for (const Action& action : schedule) text += describe(program, action) + "\n";
  return text;
}

}  // namespace hyperparallel::engine
