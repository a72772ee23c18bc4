#include "engine/segment_clock.h"

#include <cctype>
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
  std::string kind = std::string(to_string(action.kind)) + " ";
  for (const char c : executor.program().segments[action.index].name) {
    if (!std::isdigit(static_cast<unsigned char>(c))) {
      kind += c;
    } else if (kind.back() != '*') {
      kind += '*';
    }
  }
  seconds_[kind] += monotonic_seconds() - begin_;
}

}  // namespace hyperparallel::engine
