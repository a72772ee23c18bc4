// The output folder of a run: one training at a time, and nothing of an earlier run lost before a new one is safe.
#pragma once

#include <filesystem>
#include <vector>

namespace hyperparallel::train {

// Holds OUT for this process as long as it lives (flock of OUT/.lock, which the system lets go when the process ends). Throws
// UsageError, naming the process, while another one holds it, and where OUT cannot be a folder to write in.
class OutputLock {
 public:
  explicit OutputLock(const std::filesystem::path& output);
  ~OutputLock();
  OutputLock(const OutputLock&) = delete;
  OutputLock& operator=(const OutputLock&) = delete;

 private:
  int descriptor_ = -1;
};

// Moves what an earlier run wrote to OUT/before-restart, or -2, -3, ... where earlier restarts left that. A run without a
// checkpoint is removed.
void set_aside(const std::filesystem::path& output);
// The folders that restarts left; none once a run has ended.
std::vector<std::filesystem::path> runs_set_aside(const std::filesystem::path& output);
// Removes them: the new run has a checkpoint of its own.
void forget_set_aside(const std::filesystem::path& output);

}  // namespace hyperparallel::train
