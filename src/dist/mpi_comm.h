// Ranks as processes over MPI, started by mpirun or srun: `World` and `Group` as in world.h and group.h.
//
//   int main() {
//     return static_cast<int>(run_mpi_ranks([](World& world) { ... }));
//   }
//
// Ranks of one host exchange through memory that they share (host_memory.h, window.h; `mpirun --mca btl tcp,self` forbids it):
// the thread that waits for a call moves it, with a short spin where every rank has a hardware thread of its own, then asleep.
// Groups that span hosts, and sends and receives, go through MPI: one progress thread a rank makes every MPI call; it posts
// non-blocking messages and polls them with short sleeps, so that a computing neighbour is not slowed by spinning, and nothing
// waits for ever. To every peer of a call goes a small message with what this rank called, in which short rows travel along;
// longer ones follow, bulk ones in pieces. Both ways this program adds sums itself, in rank order (MPI knows no BF16, and its
// order may vary): the same bits as ranks as threads.
//
// When a rank fails, it tells the others before it ends. Nobody leaves before all have said what they met, or some seconds
// have passed: mpirun kills all ranks as soon as one has ended badly.
#pragma once

#include <functional>

#include "base/error.h"
#include "dist/world.h"

namespace hyperparallel::dist {

struct MpiOptions {
  Seconds start_timeout = Seconds(600);  // for all ranks to be there
  Seconds end_timeout = Seconds(600);    // for the others to end after this one
};

// Runs `body` as this process's rank and returns the exit code of the process: that of the exception that left `body`, whose
// message goes to standard error as "error: rank 2: ...", or kPeer for a rank that was done when another failed. MPI is started
// and ended here, so once a process. MPI's idea of rank and world size must agree with the launcher's environment (launch.h). A
// rank that does not come to the start ends the process, for MPI's own start knows no end.
ExitCode run_mpi_ranks(const std::function<void(World&)>& body, const MpiOptions& options = {});

}  // namespace hyperparallel::dist
