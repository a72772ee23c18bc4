// The plan of a configuration, and what it shares with a run of it.
#pragma once

#include "models/adapter/family.h"
#include "plan/plan.h"
#include "train/config.h"

namespace hyperparallel::train {

// How a run of the configuration schedules its step on the rank of `layout`. Throws ConfigError where the global batch is not a
// multiple of what the ranks take.
engine::ScheduleOptions schedule_options(const Config& config, const engine::Layout& layout, int64_t rows = 0);

// Plans it for so many ranks, for full rows. Throws ConfigError where degrees do not fit.
plan::Plan plan_of(const Config& config, int64_t ranks, models::Routing routing = models::Routing::kBalanced,
                   const models::PlannedPictures& pictures = {});

}  // namespace hyperparallel::train
