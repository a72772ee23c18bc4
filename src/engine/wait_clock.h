// How long a rank waits for what others send.
#pragma once

#include "base/aten.h"

#include <map>
#include <string>

#include "base/clock.h"
#include "base/trace.h"
#include "dist/group.h"

namespace hyperparallel::engine {

class WaitClock {
 public:
  // Waits, and counts the time for the mesh axis; `name` is for the trace.
  at::Tensor wait(dist::Pending& pending, const std::string& axis, const std::string& name) {
    trace::Scope scope(trace::enabled() ? "wait " + name : std::string(), "exchange");
    const double begin = monotonic_seconds();
    at::Tensor result = pending.wait();
    seconds_[axis] += monotonic_seconds() - begin;
    return result;
  }

  // The counter of an axis, for what waits by itself.
  double& of(const std::string& axis) { return seconds_[axis]; }

  const std::map<std::string, double>& seconds() const { return seconds_; }  // by axis
  void clear() {
    for (auto& [axis, seconds] : seconds_) seconds = 0;
  }

 private:
  std::map<std::string, double> seconds_;
};

}  // namespace hyperparallel::engine
