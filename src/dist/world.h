// All ranks of a run, as seen by one of them. Groups are made from it; `thread_comm.h` and `mpi_comm.h` make it.
#pragma once

#include <memory>
#include <string>

#include "dist/group.h"

namespace hyperparallel::dist {

class World {
 public:
  virtual ~World() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  // How many ranks share this host.
  virtual int local_size() const = 0;
  // How many of its hardware threads fall to this one: hardware_threads.h.
  virtual int hardware_threads() const = 0;

  // The group of this rank under a name. Every rank of the world calls it for the same names in the same order, with the members
  // of its own group; groups of one name have no rank in common. Does not communicate. The group must not outlive the world.
  virtual std::shared_ptr<Group> make_group(const GroupOptions& options) = 0;

  // Tells all other ranks that this one cannot go on: their calls and waits throw a PeerError with this reason. Only the first
  // failure of a world counts. To be called before an exception leaves the code of a rank.
  virtual void abort(const std::string& reason) = 0;
};

}  // namespace hyperparallel::dist
