// How long the forward passes of some segments take.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/executor.h"

namespace hyperparallel::engine {

class SegmentClock : public ActionObserver {
 public:
  // The segments whose name matches `glob` (base/glob.h).
  SegmentClock(const Program& program, const std::string& glob);
  void on_action_begin(const Executor& executor, const Action& action) override;
  void on_action_end(const Executor& executor, const Action& action) override;

  double take();  // seconds since the last call, forward and recomputed

 private:
  bool counts(const Action& action) const {
    return (action.kind == ActionKind::kForward || action.kind == ActionKind::kRecompute) && counted_[action.index];
  }

  std::vector<bool> counted_;  // by segment
  double begin_ = 0, sum_ = 0;
};

// How long each kind of segment takes: names without their numbers, "forward layers.*.attn.attend".
class SegmentTimes : public ActionObserver {
 public:
  void on_action_begin(const Executor& executor, const Action& action) override;
  void on_action_end(const Executor& executor, const Action& action) override;

  const std::map<std::string, double>& seconds() const { return seconds_; }  // recomputed forwards are kinds of their own

 private:
  std::map<std::string, double> seconds_;
  double begin_ = 0;
};

}  // namespace hyperparallel::engine
