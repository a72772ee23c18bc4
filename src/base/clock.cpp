#include "base/clock.h"

#include <chrono>

namespace hyperparallel {

double monotonic_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace hyperparallel
