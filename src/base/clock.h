// The clock for durations.
#pragma once

namespace hyperparallel {

double monotonic_seconds();  // since some fixed moment; never goes back

}  // namespace hyperparallel
