// Which hardware threads a rank may compute on. Launchers bind processes to some of a host's (`srun --cpus-per-task`,
// `mpirun --bind-to`), and ranks may share them.
#pragma once

#include <sched.h>

#include <vector>

namespace hyperparallel::dist {

// Those that the calling thread may use.
cpu_set_t allowed_hardware_threads();

// How many fall to `rank` of the ranks that may use `allowed[rank]` each: one that k of them may use counts 1/k; rounded down, at
// least 1.
int share_of_hardware_threads(const std::vector<cpu_set_t>& allowed, size_t rank);

}  // namespace hyperparallel::dist
