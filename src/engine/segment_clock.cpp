#include "engine/segment_clock.h"

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

}  // namespace hyperparallel::engine
