// `--ranks N`: starts this program again as N ranks on this host, by mpirun.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "dist/world.h"

namespace hyperparallel {

// Takes `--ranks N` or `--ranks=N` out of the arguments. Throws UsageError where N is no number of 1 or more.
std::optional<int64_t> take_ranks(std::vector<std::string>& arguments);

// Runs `hyperparallel COMMAND arguments...` as `ranks` processes and returns the exit code of the first that failed. SIGTERM and
// SIGINT go on to the ranks, which end after the present step. Throws UsageError where mpirun cannot be started.
int run_local_ranks(int64_t ranks, const std::string& command, const std::vector<std::string>& arguments);

// The ranks of a command.
struct RankStart {
  int64_t ranks = 1;
  bool here = false;  // this program starts them; else a launcher has, or there is one
};
// From `--ranks N`, which is taken out of the arguments, or the launcher's environment. Throws UsageError where both speak.
RankStart take_rank_start(std::vector<std::string>& arguments);
// The command on all of its ranks: starts them as run_local_ranks, or runs `body` as one of them, without a world where there is
// one alone. `timeout`: for all ranks to start, and to end. Returns the exit code.
int run_on_ranks(const RankStart& start, const std::string& command, const std::vector<std::string>& arguments,
                 dist::Seconds timeout, const std::function<int(dist::World*)>& body);

}  // namespace hyperparallel
