// The memory high-water mark by segment: how many bytes of tensors were alive at most while it ran, forward, recomputed and
// backward. Needs counted allocations (engine/memory.h).
#pragma once

#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "engine/executor.h"
#include "engine/memory.h"

namespace hyperparallel::engine {

struct SegmentMemory {
  std::string segment;
  std::string pass;           // forward | recompute | backward
  int64_t highest_bytes = 0;  // of all tensors alive at once while it ran, parameters and optimizer included
  int64_t own_bytes = 0;      // the most that it had beyond what was alive when it began
  int64_t runs = 0;
};

// While a trace is recorded (base/trace.h) it gets the curves `tensors`: live bytes after, and highest bytes within each segment.
class MemoryProfile : public ActionObserver {
 public:
  void on_action_begin(const Executor& executor, const Action& action) override;
  void on_action_end(const Executor& executor, const Action& action) override;

  std::vector<SegmentMemory> segments() const;  // the highest first

 private:
  std::map<std::pair<ActionKind, int>, SegmentMemory> segments_;
  std::unique_ptr<PeakScope> scope_;  // of the segment that runs
  int64_t before_ = 0;
};

}  // namespace hyperparallel::engine
