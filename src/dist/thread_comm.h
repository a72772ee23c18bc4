// Ranks as threads of one process: for tests, sanitizers and parity runs of many layouts on one machine.
//
//   run_ranks(4, {}, [](World& world) { ... what a process would do ... });
//
// The rank that comes last to a collective does its work for all; `wait` only waits. Ranks share libtorch's allocator and flags
// and its default random generator, so ranks must not use the latter.
#pragma once

#include <functional>

#include "base/error.h"
#include "dist/world.h"

namespace hyperparallel::dist {

struct RankOptions {
  int threads = 1;  // of libtorch in each rank
};

// The failure of one rank, as its launcher sees it: "rank 2: ..." with the exit code of the rank's error.
class RankError : public Error {
 public:
  RankError(int rank, ExitCode code, const std::string& message);
  int rank() const { return rank_; }

 private:
  int rank_;
};

// Runs `body` on `world_size` threads and returns when all have returned. Each thread starts with the caller's grad mode and
// `options.threads`. When a body throws, the world is aborted as World::abort says; after all ranks have ended, the first
// failure is thrown as a RankError. A rank that waits for one that has returned gets a PeerError at once.
void run_ranks(int world_size, const RankOptions& options, const std::function<void(World&)>& body);

}  // namespace hyperparallel::dist
