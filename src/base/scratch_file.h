// A file without a name, for data that does not fit memory: it is gone when it is closed, however the process ends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>

namespace hyperparallel::file {

class ScratchFile {
 public:
  // Lies in `folder`, which exists. Throws FileError, as do the functions below.
  explicit ScratchFile(const std::filesystem::path& folder);
  ~ScratchFile();
  ScratchFile(const ScratchFile&) = delete;
  ScratchFile& operator=(const ScratchFile&) = delete;

  // Thread-safe where the ranges of bytes do not overlap. What was never written reads as an error.
  void write(int64_t offset, const void* bytes, size_t size);
  void read(int64_t offset, void* bytes, size_t size) const;

  // The file as memory of so many bytes, more than 0: what was not written is zeros. It stays mapped until munmap.
  void* map(size_t bytes);
  void take_space(size_t bytes);  // on the disk, of so many bytes from the beginning
  void drop_cache() const;        // what is written need not stay in memory

 private:
  std::filesystem::path folder_;
  int descriptor_ = -1;
};

}  // namespace hyperparallel::file
