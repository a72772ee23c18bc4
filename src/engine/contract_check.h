// Verifies on a real run what regions take for granted of each other (NOTE [Contracts]). Costs a pass over each such tensor and a
// small exchange for it.
//
// NOTE [Contracts]: an exchange kind says what holds at its two ends. Equal bits on all ranks of its axis must have: the value
// that goes into kEnter and kSplit, and the gradient of what comes out of kAllReduce and kCollect. Parameters that several ranks
// own must be equal on them before every run: over tp those that no axis cuts, over the HSDP replicas all outside of ep, over the
// whole stage the state.
#pragma once

#include <string>
#include <vector>

#include "engine/executor.h"

namespace hyperparallel::engine {

class ContractCheck : public ActionObserver {
 public:
  // Both throw InternalError, on every rank of the axis alike, for the first tensor that is not the same: which one, at the
  // border of which region, on which ranks.
  void on_run_begin(const Executor& executor) override;
  void on_action_begin(const Executor& executor, const Action& action) override;
};

}  // namespace hyperparallel::engine
