#include "dist/hardware_threads.h"

#include <algorithm>
#include <cmath>

namespace hyperparallel::dist {

cpu_set_t allowed_hardware_threads() {
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  sched_getaffinity(0, sizeof(allowed), &allowed);
  return allowed;
}

int share_of_hardware_threads(const std::vector<cpu_set_t>& allowed, size_t rank) {
  double share = 0;
  for (int thread = 0; thread < CPU_SETSIZE; ++thread) {
    if (!CPU_ISSET(thread, &allowed[rank])) continue;
    share +=
        1.0 / static_cast<double>(std::ranges::count_if(allowed, [&](const cpu_set_t& set) { return CPU_ISSET(thread, &set); }));
  }
  return std::max(1, static_cast<int>(std::floor(share + 1e-6)));
}

}  // namespace hyperparallel::dist
