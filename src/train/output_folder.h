// The output folder of a run: one training at a time, and nothing of an earlier run lost before a new one is safe.
#pragma once

#include <filesystem>

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

// Moves what an earlier run wrote to OUT/before-restart, in place of what lies there, unless the earlier run has no checkpoint
// and that folder does.
void set_aside(const std::filesystem::path& output);
// Removes OUT/before-restart: the new run has a checkpoint of its own.
void forget_set_aside(const std::filesystem::path& output);

}  // namespace hyperparallel::train
