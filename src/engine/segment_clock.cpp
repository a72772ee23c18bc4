#include "engine/segment_clock.h"

#include <fmt/format.h>

#include <utility>

#include "base/clock.h"
#include "base/glob.h"

namespace hyperparallel::engine {

SegmentClock::SegmentClock(const Program& program, const std::string& glob) {
  for (const Segment& segment : program.segments) counted_.push_back(glob_matches(glob, segment.name));
}

void SegmentClock::on_action_begin(const Executor&, const Action& action) {
  if (counts(action)) begin_ = monotonic_seconds();
}

void SegmentClock::on_action_end(const Executor&, const Action& action) {
  if (counts(action)) sum_ += monotonic_seconds() - begin_;
}

double SegmentClock::take() {
  return std::exchange(sum_, 0.0);
}

void SegmentTimes::on_action_begin(const Executor&, const Action&) {
  begin_ = monotonic_seconds();
}

void SegmentTimes::on_action_end(const Executor& executor, const Action& action) {
  const bool is_segment =
      action.kind == ActionKind::kForward || action.kind == ActionKind::kRecompute || action.kind == ActionKind::kBackward;
  if (!is_segment) return;
  const std::string kind =
      fmt::format("{} {}", to_string(action.kind), without_numbers(executor.program().segments[action.index].name));
  seconds_[kind] += monotonic_seconds() - begin_;
}

}  // namespace hyperparallel::engine
