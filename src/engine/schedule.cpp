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
    case ActionKind::kLaunchOffload:
      return "launch offload";
    case ActionKind::kWaitOffload:
      return "wait offload";
    case ActionKind::kLaunchFetch:
      return "launch fetch";
    case ActionKind::kWaitFetch:
      return "wait fetch";
  }
  return "?";
}

namespace {

bool matches_any(const std::vector<std::string>& globs, const std::string& name) {
  return std::ranges::any_of(globs, [&](const std::string& glob) { return glob_matches(glob, name); });
}

bool runs_segment(const Action& action) {
  return action.kind == ActionKind::kForward || action.kind == ActionKind::kRecompute || action.kind == ActionKind::kBackward;
}

// Actions to put around those of a list.
struct Insertions {
  explicit Insertions(size_t actions) : before(actions), after(actions) {}
  std::vector<std::vector<Action>> before, after;  // by action

  std::vector<Action> into(const std::vector<Action>& actions) const {
    std::vector<Action> result;
    for (size_t i = 0; i < actions.size(); ++i) {
      result.insert(result.end(), before[i].begin(), before[i].end());
      result.push_back(actions[i]);
      result.insert(result.end(), after[i].begin(), after[i].end());
    }
    return result;
  }
};

// Emits the actions of one step; the passes below it add units and releases.
class Builder {
 public:
  Builder(const Program& program, const ScheduleOptions& options) : program_(program), options_(options) { classify(); }

  std::vector<Action> build() {
    for (int micro_batch = 0; micro_batch < options_.micro_batches; ++micro_batch) {
      forward(micro_batch);
      if (options_.backward) backward(micro_batch);
    }
    return with_units(with_releases(with_offload(std::move(actions_))));
  }

 private:
  int run_of(int region) const { return region < 0 ? -1 : region / options_.recompute.every; }

  // Whether the exchange needs no other rank in forward.
  bool is_local(const Exchange& exchange) const {
    if (exchange.kind == ExchangeKind::kEnter || exchange.kind == ExchangeKind::kSplit) return true;
    const auto size = options_.axis_sizes.find(exchange.axis);
    return size == options_.axis_sizes.end() || size->second == 1;
  }
  // Whether backward has it again rather than its result.
  bool repeats(const Exchange& exchange) const {
    return is_local(exchange) || matches_any(options_.recompute.regather, exchange.name);
  }
  // The region that makes a value, anew where that is recomputed; nothing for inputs and for what other ranks sent.
  std::optional<int> made_in(int value) const {
    if (program_.segment_of[value] >= 0) return program_.segments[program_.segment_of[value]].region;
    if (program_.exchange_of[value] < 0) return {};
    const Exchange& exchange = program_.exchanges[program_.exchange_of[value]];
    return repeats(exchange) ? std::optional(exchange.region) : std::nullopt;
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
      if (!region || run_of(*region) == run_of(reader_region)) return;
      const int exchange = program_.exchange_of[id.index];
      const bool is_regathered = exchange >= 0 && !is_local(program_.exchanges[exchange]);
      kept_[(is_regathered ? program_.exchanges[exchange].input : id).index] = true;
    };
    for (const Segment& reader : program_.segments) {
      for (ValueId id : reader.reads) leaves(id, reader.region);
    }
    for (const Exchange& exchange : program_.exchanges) leaves(exchange.input, exchange.region);
    if (policy.mode == RecomputePolicy::Mode::kSelective) {
      for (size_t v = 0; v < kept_.size(); ++v) {
        kept_[v] = kept_[v] || matches_any(policy.keep, program_.values[v].name);
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
        if (!program_.has_backward[run->segment]) continue;
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
    Insertions insertions(actions.size());
    std::map<std::pair<int, int>, size_t> last;  // (value, micro-batch) -> action of the last use in this life
    std::vector<int> uses, makes;
    auto end_life = [&](std::pair<int, int> key) {
      insertions.after[last.at(key)].push_back({ActionKind::kReleaseValue, key.first, key.second});
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
    return insertions.into(actions);
  }

  // For each (value, micro-batch) that may be offloaded, the actions around each stretch in which it is only held.
  std::map<std::pair<int, int>, std::vector<std::pair<size_t, size_t>>> rests(const std::vector<Action>& actions) const {
    std::vector<bool> matches(program_.values.size());
    for (size_t v = 0; v < matches.size(); ++v) {
      const bool is_made = program_.segment_of[v] >= 0 || program_.exchange_of[v] >= 0;
      matches[v] = is_made && kept_[v] && matches_any(options_.recompute.offload, program_.values[v].name);
    }
    for (ValueId id : program_.outputs) matches[id.index] = false;
    std::map<std::pair<int, int>, std::vector<std::pair<size_t, size_t>>> rests;
    std::map<std::pair<int, int>, size_t> last;  // use, or making
    std::vector<int> uses, makes;
    for (size_t i = 0; i < actions.size(); ++i) {
      uses_of(actions[i], uses, makes);
      for (int value : uses) {
        const std::pair<int, int> key{value, actions[i].micro_batch};
        if (!matches[value]) continue;
        rests[key].emplace_back(last.at(key), i);
        last[key] = i;
      }
      for (int value : makes) last[{value, actions[i].micro_batch}] = i;
    }
    return rests;
  }

  // NOTE [Offload] of the header.
  std::vector<Action> with_offload(std::vector<Action> actions) const {
    if (options_.recompute.offload.empty() || !options_.backward) return actions;
    const auto distance = static_cast<size_t>(options_.recompute.offload_distance);
    std::vector<size_t> runs;  // actions that run a segment
    for (size_t i = 0; i < actions.size(); ++i) {
      if (runs_segment(actions[i])) runs.push_back(i);
    }
    Insertions insertions(actions.size());
    for (const auto& [key, rests] : rests(actions)) {
      for (const auto& [former, next] : rests) {
        const auto after = static_cast<size_t>(std::upper_bound(runs.begin(), runs.end(), former) - runs.begin());
        const auto back = static_cast<size_t>(std::lower_bound(runs.begin(), runs.end(), next) - runs.begin());
        if (back - after < 3 * distance) continue;
        const auto action = [&](ActionKind kind) { return Action{kind, key.first, key.second}; };
        insertions.after[former].push_back(action(ActionKind::kLaunchOffload));
        insertions.before[runs[after + distance]].push_back(action(ActionKind::kWaitOffload));
        insertions.before[runs[back - distance]].push_back(action(ActionKind::kLaunchFetch));
        insertions.before[next].push_back(action(ActionKind::kWaitFetch));
      }
    }
    return insertions.into(actions);
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
      if (!runs_segment(action)) continue;
      const bool is_backward = action.kind != ActionKind::kForward;
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

std::vector<std::string> unmatched_globs(const Program& program, const RecomputePolicy& policy) {
  std::vector<std::string> unmatched;
  const auto check = [&](const char* list, const std::vector<std::string>& globs, const auto& items) {
    for (const std::string& glob : globs) {
      const bool matches = std::ranges::any_of(items, [&](const auto& item) { return glob_matches(glob, item.name); });
      if (!matches) unmatched.push_back(fmt::format("{}: `{}`", list, glob));
    }
  };
  check("keep", policy.keep, program.values);
  check("regather", policy.regather, program.exchanges);
  check("offload", policy.offload, program.values);
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
    case ActionKind::kLaunchOffload:
    case ActionKind::kWaitOffload:
    case ActionKind::kLaunchFetch:
    case ActionKind::kWaitFetch:
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
