// Where optimizers keep their state: in memory, or in mapped files, from which the system fetches it shortly before an update and
// whose pages the process gives back after it.
#pragma once

#include "base/aten.h"

#include <filesystem>
#include <memory>
#include <thread>
#include <vector>

#include "base/mapped_memory.h"

namespace hyperparallel::optim {

class StateMemory {
 public:
  // An empty folder: memory. Else files without names in it, whose space is taken at once.
  explicit StateMemory(std::filesystem::path folder = {}) : folder_(std::move(folder)) {}

  // Throws file::FileError, for a full disk for example.
  at::Tensor zeros(at::IntArrayRef sizes, const at::TensorOptions& options);

  // Begins to bring everything into memory, on a thread of its own.
  void prefetch();
  // The process needs none of it until the next `prefetch` or access: what is in files is no longer resident memory of its own.
  void rest();

 private:
  std::filesystem::path folder_;
  std::vector<std::shared_ptr<file::MappedMemory>> files_;
  size_t used_ = 0;  // bytes of the last file
  std::jthread reader_;
};

// nullptr: memory.
inline at::Tensor zeros_in(StateMemory* memory, at::IntArrayRef sizes, const at::TensorOptions& options) {
  return memory == nullptr ? at::zeros(sizes, options) : memory->zeros(sizes, options);
}

}  // namespace hyperparallel::optim
