// Memory that the ranks of one host share: a bell and a board entry of each rank, and a window of each rank for every group.
// Internal to mpi_comm.
//
// It is a memfd: it has no name, needs no room in /dev/shm, and is gone with the last rank, however that ends. Pages that nobody
// touched take no memory. A rank's lock on its own byte of the memfd, which the kernel drops when the process ends, tells the
// others that it lives.
#pragma once

#include <mpi.h>

#include <memory>
#include <vector>

#include "dist/bell.h"
#include "dist/board.h"
#include "dist/window.h"

namespace hyperparallel::dist {

class HostMemory {
 public:
  static constexpr int kMostGroups = 64;

  // Every rank calls it, on the thread that calls MPI. `local` has the ranks of this host. Returns nullptr where this host has
  // one rank only, where shared memory between ranks is forbidden (`mpirun --mca btl tcp,self`), and, with a warning that says
  // why, where it cannot be had.
  static std::unique_ptr<HostMemory> share(MPI_Comm world, MPI_Comm local);
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  bool has(int world_rank) const { return place_[world_rank] >= 0; }
  bool has_all(const std::vector<int>& world_ranks) const;
  bool is_dead(int world_rank) const;
  // Whether every rank of this host can have a hardware thread of its own, so that a short spin takes nothing from another.
  bool has_threads_for_all() const { return has_threads_for_all_; }

  // Of ranks of this host:
  Bell& bell(int world_rank) const { return space(world_rank)->bell; }
  LastCall& last_call(int world_rank) const { return space(world_rank)->last_call; }
  Window& window(int world_rank, int group_index) const { return space(world_rank)->windows[group_index]; }

 private:
  struct Space {
    Bell bell;
    alignas(64) LastCall last_call;
    Window windows[kMostGroups];
  };
  HostMemory() = default;
  Space* space(int world_rank) const;

  std::vector<int> place_;  // of this host's ranks, by world rank; others: -1
  int file_ = -1, count_ = 0;
  Space* spaces_ = nullptr;
  bool has_threads_for_all_ = false;
};

}  // namespace hyperparallel::dist
