// Memory for tables that may be larger than what is at hand: zeros that cost nothing until they are written, in the memory of the
// process or in a file without a name, which the system writes out and reads back by pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "base/scratch_file.h"

namespace hyperparallel::file {

class MappedMemory {
 public:
  // All zeros. An empty folder: memory of the process; else a file in it. Throws FileError, or std::bad_alloc where not even the
  // addresses are there.
  explicit MappedMemory(size_t bytes, const std::filesystem::path& folder = {});
  ~MappedMemory();
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;

  void* data() const { return data_; }
  size_t size() const { return size_; }
  bool is_file() const { return file_ != nullptr; }

  // First writes to a part of a file must come through here: a full disk is then an error, and no signal. Later ones may go
  // straight to memory. Throws FileError.
  void write(size_t offset, const void* bytes, size_t size);

  // The system may begin to read these ranges (offset, size) of a file; returns at once or soon. Thread-safe.
  void will_need(const std::vector<std::pair<size_t, size_t>>& ranges) const;
  // Takes the whole of a file's space, so that memory may be written anywhere. Throws FileError.
  void take_space();
  void populate() const;  // returns when all of a file is in memory, or the system has no more of it
  // Pages of a file leave the memory of the process; the system keeps what it likes. Contents stay.
  void unmap_pages() const;
  // The same, and the system keeps none: for measurements.
  void drop_pages() const;

 private:
  std::unique_ptr<ScratchFile> file_;
  void* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace hyperparallel::file
