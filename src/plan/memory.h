// The memory of one rank's step: its schedule replayed on a ledger of bytes, without any tensor.
//
// NOTE [What is counted]: tensors, as the run's own ledger and allocator count them (engine/ledger.h, engine/memory.h).
//   state         masters and optimizer state, all the time
//   inputs        of all micro-batches of the step
//   gradients     of the owned rows, once the first micro-batch was reduced
//   slots         what backward adds of a unit's weights, until it is reduced
//   copies        gathered parameters in the compute type
//   values        what segments hand to each other, until the last reader or the last graph that holds it is done
//   value_sums    gradients of values, in the master type
//   graphs        what segments keep inside for their backward (Footprint::saved)
//   messages      what is on its way
//   work          what a segment needs while it runs (Footprint::forward, backward)
// A micro-batch after the second is like the second, so two are replayed at most.
#pragma once

#include "plan/plan.h"

namespace hyperparallel::plan {

// `state_bytes`: masters and optimizer state of the rank.
StepMemory replay_memory(const PlanRequest& request, int64_t state_bytes);

}  // namespace hyperparallel::plan
