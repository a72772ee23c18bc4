// `--ranks N`: starts this program again as N ranks on this host, by mpirun.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace hyperparallel {

// Takes `--ranks N` or `--ranks=N` out of the arguments. Throws UsageError where N is no number of 1 or more.
std::optional<int64_t> take_ranks(std::vector<std::string>& arguments);

// Runs `hyperparallel COMMAND arguments...` as `ranks` processes and returns the exit code of the first that failed. SIGTERM and
// SIGINT go on to the ranks, which end after the present step. Throws UsageError where mpirun cannot be started.
int run_local_ranks(int64_t ranks, const std::string& command, const std::vector<std::string>& arguments);

}  // namespace hyperparallel
