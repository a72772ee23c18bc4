// The configured trace: records `profile.steps` steps from step `profile.start` on and writes them when they are done
// (base/trace.h), with the memory high-water mark of each segment beside them (engine/memory_profile.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>

#include "engine/memory_profile.h"

namespace hyperparallel::train {

class TraceWindow {
 public:
  // Records steps first_step .. first_step + steps - 1 (steps count from 1); `steps` 0: never. The trace goes to
  // `folder`/trace-steps-<first>-<last>.json; the folder is made when needed. Of `executor`, where one is given, the memory of
  // its segments goes to memory-steps-<first>-<last>.json: {"segments": [{"segment", "pass", "highest_bytes", "own_bytes",
  // "runs"}, ...]}, the highest first; the first ten are logged. It must outlive the window.
  TraceWindow(std::filesystem::path folder, int64_t first_step, int64_t steps, engine::Executor* executor = nullptr);
  ~TraceWindow();  // ends a recording that was cut short, and writes what there is

  void before_step(int64_t step);
  void after_step(int64_t step);  // samples the resident memory, and writes the trace after the window's last step

 private:
  void write(int64_t last_step);
  void write_memory(const std::filesystem::path& path);

  std::filesystem::path folder_;
  int64_t first_step_, steps_;
  engine::Executor* executor_;
  std::unique_ptr<engine::MemoryProfile> memory_;  // while recording
  int64_t begun_ = 0;                              // first recorded step, 0: not recording
  int64_t latest_ = 0;                             // last step that ended while recording
};

}  // namespace hyperparallel::train
