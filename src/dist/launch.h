// Who this process is among those that a launcher started, read from the environment.
//
// Read are torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE), Open MPI's (OMPI_COMM_WORLD_*), those of MPICH
// and Intel MPI (PMI_RANK, PMI_SIZE, MPI_LOCALRANKID, MPI_LOCALNRANKS) and Slurm's (SLURM_PROCID, SLURM_STEP_NUM_TASKS or
// SLURM_NTASKS, SLURM_LOCALID, SLURM_NTASKS_PER_NODE), in this order of power. Slurm's count only where no other launcher speaks:
// mpirun and torchrun run inside a Slurm job as one task a node, and its numbers are then those of that task.
#pragma once

#include <functional>
#include <string>

namespace hyperparallel::dist {

struct Launch {
  std::string launcher;  // "torchrun", "Open MPI", "MPICH or Intel MPI", "Slurm"; empty: started by hand, one rank
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;  // among the ranks of this host
  int local_size = 1;  // ranks of this host
};

// Throws ConfigError when a launcher's variables are incomplete, are no numbers, or contradict another launcher's; the message
// shows the variables. `get` is std::getenv outside of tests.
Launch read_launch();
Launch read_launch(const std::function<const char*(const char*)>& get);

}  // namespace hyperparallel::dist
