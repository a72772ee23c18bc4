#include "engine/schedule.h"

#include <algorithm>
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
    case ActionKind::kGatherUnit:
      return "gather";
    case ActionKind::kReleaseUnit:
      return "release unit";
    case ActionKind::kReduceUnit:
      return "reduce";
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
  int run_of(const Segment& segment) const { return segment.region < 0 ? -1 : segment.region / options_.recompute.every; }

  // Decides which segments run again and which values stay for them.
  void classify() {
    const RecomputePolicy& policy = options_.recompute;
    HP_CHECK(policy.every >= 1, "recompute runs of {} regions", policy.every);
    recomputed_.assign(program_.segments.size(), false);
    if (options_.backward && policy.mode != RecomputePolicy::Mode::kNone) {
      for (size_t s = 0; s < recomputed_.size(); ++s) recomputed_[s] = program_.segments[s].region >= 0;
    }
    kept_.assign(program_.values.size(), true);
    for (size_t v = 0; v < kept_.size(); ++v) {
      const int maker = program_.segment_of[v];
      if (maker >= 0 && recomputed_[maker] && program_.values[v].kind == ValueKind::kDifferentiable) kept_[v] = false;
    }
    for (const Segment& reader : program_.segments) {
      for (ValueId id : reader.reads) {
        const int maker = program_.segment_of[id.index];
        if (maker >= 0 && run_of(program_.segments[maker]) != run_of(reader)) kept_[id.index] = true;  // leaves its run
      }
    }
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
    for (ValueId id : program_.segments[s].reads) {
      if (!kept_[id.index]) recompute(program_.segment_of[id.index], micro_batch);
    }
    emit(ActionKind::kRecompute, s, micro_batch, true);
  }

  void backward(int micro_batch) {
    graph_live_.assign(program_.segments.size(), false);
    for (size_t s = 0; s < graph_live_.size(); ++s) graph_live_[s] = !recomputed_[s];
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
      uses.push_back(program_.exchanges[action.index].input.index);
    } else if (action.kind == ActionKind::kWait) {
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

  // Gathers a unit before its first use and releases it after its last; a reduce follows the last backward of each micro-batch.
  std::vector<Action> with_units(std::vector<Action> actions) const {
    struct Life {
      size_t first, last;
    };
    // Lives of a unit: one for the whole step, or one for every forward and every backward.
    std::map<std::pair<int, int>, Life> lives;
    std::map<std::pair<int, int>, size_t> last_backward;  // (unit, micro-batch)
    for (size_t i = 0; i < actions.size(); ++i) {
      const Action& action = actions[i];
      const bool is_forward = action.kind == ActionKind::kForward;
      const bool is_backward = action.kind == ActionKind::kBackward || action.kind == ActionKind::kRecompute;
      if (!is_forward && !is_backward) continue;
      for (ParameterId id : program_.segments[action.index].parameters) {
        const int unit = program_.unit_of[id.index];
        const int life = options_.release_after_forward ? 2 * action.micro_batch + is_backward : 0;
        auto [it, is_new] = lives.try_emplace({unit, life}, Life{i, i});
        it->second.last = i;
        if (is_backward) last_backward[{unit, action.micro_batch}] = i;
      }
    }
    std::vector<std::vector<Action>> before(actions.size()), after(actions.size());
    for (const auto& [key, index] : last_backward) after[index].push_back({ActionKind::kReduceUnit, key.first, key.second});
    for (const auto& [key, life] : lives) {
      before[life.first].push_back({ActionKind::kGatherUnit, key.first, -1});
      after[life.last].push_back({ActionKind::kReleaseUnit, key.first, -1});
    }
    std::vector<Action> result;
    for (size_t i = 0; i < actions.size(); ++i) {
      result.insert(result.end(), before[i].begin(), before[i].end());
      result.push_back(actions[i]);
      result.insert(result.end(), after[i].begin(), after[i].end());
    }
    return result;
  }

  const Program& program_;
  const ScheduleOptions& options_;
  std::vector<bool> recomputed_;  // per segment
  std::vector<bool> kept_;        // per value: at hand when backward recomputes
  std::vector<bool> graph_live_;  // per segment, while emitting one backward
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
    case ActionKind::kGatherUnit:
    case ActionKind::kReleaseUnit:
    case ActionKind::kReduceUnit:
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
