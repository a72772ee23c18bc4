// Compares what the ledger says is alive with what the allocator has handed out, after every action of a run.
//
// Both sides may differ by 1 % and 64 KiB: the allocator rounds sizes up, and small tensors of counters and seeds are in no
// entry. Whoever else allocates tensors or frees them while the executor runs (a checkpoint that is written in the background)
// disturbs the comparison. Needs counted allocations (engine/memory.h).
#pragma once

#include "engine/executor.h"

namespace hyperparallel::engine {

class LedgerCheck : public ActionObserver {
 public:
  void on_run_begin(const Executor& executor) override;
  // Throws InternalError naming the action, both numbers and the largest entries.
  void on_action_end(const Executor& executor, const Action& action) override;

 private:
  int64_t counted(const Executor& executor) const;

  std::vector<at::Tensor> inputs_;  // whoever called the executor keeps them after their last reader
  int64_t others_ = 0;              // bytes that were alive before the run
};

}  // namespace hyperparallel::engine
