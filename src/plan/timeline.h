// The time line of one micro-batch's step on rank 0, in the order of the schedule. Time is counted in segments run, since a plan
// knows no durations: two events overlap here where the schedule lets them overlap.
#pragma once

#include "plan/plan.h"

namespace hyperparallel::plan {

std::vector<TimelineEvent> make_timeline(const PlanRequest& request);

}  // namespace hyperparallel::plan
