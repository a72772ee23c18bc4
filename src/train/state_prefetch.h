// Optimizer state that lies in files (optimizer.state_storage: mmap) comes back into memory while the last segments of backward
// run.
#pragma once

#include <algorithm>

#include "engine/executor.h"
#include "optim/mix.h"

namespace hyperparallel::train {

class StatePrefetch : public engine::ActionObserver {
 public:
  StatePrefetch(const engine::Program& program, optim::MixedOptimizer& optimizer)
      : segments_(std::ranges::count(program.has_backward, true)), optimizer_(optimizer) {}

  // Before a step of so many micro-batches.
  void begin(int64_t micro_batches) { left_ = micro_batches * segments_; }

  void on_action_begin(const engine::Executor&, const engine::Action& action) override {
    if (action.kind == engine::ActionKind::kBackward && --left_ == segments_ / 8) optimizer_.prefetch();
  }

 private:
  int64_t segments_, left_ = 0;  // with a backward; of the step's
  optim::MixedOptimizer& optimizer_;
};

}  // namespace hyperparallel::train
