// The manifest of a checkpoint: which tensors there are, in which boxes of which files, and the checksums of every byte.
//
// manifest.json is one JSON object: xxh3 (of the file's own text with these 16 digits as zeros), format, version, step,
//   shards    {file: {bytes, header_xxh3}}       safetensors files; header = length field, JSON and padding
//   documents {file: {bytes, xxh3}}              texts: configuration, random state, schedule, loader position, ...
//   tensors   {name: {dtype, shape, pieces: [{file, key, offset, size, xxh3}]}}   shape is global; xxh3 of the piece's bytes
// It is written last, so a folder that has one is complete.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/box.h"

namespace hyperparallel::checkpoint {

inline constexpr const char* kManifestFile = "manifest.json";

struct StoredPiece {
  std::string file, key;  // safetensors file in the checkpoint's folder, tensor name in it
  Box box;                // of the global tensor
  uint64_t xxh3 = 0;
};

struct StoredTensor {
  std::string dtype;  // safetensors spelling
  std::vector<int64_t> shape;
  std::vector<StoredPiece> pieces;
};

struct StoredFile {
  int64_t bytes = 0;
  uint64_t xxh3 = 0;  // shards: of the header; documents: of the whole file
};

struct Manifest {
  int64_t step = 0;
  std::map<std::string, StoredFile> shards, documents;
  std::map<std::string, StoredTensor> tensors;
};

uint64_t xxh3(const void* bytes, size_t size);
// The same of bytes that come one after another.
class Checksum {
 public:
  Checksum();
  ~Checksum();
  Checksum(const Checksum&) = delete;
  Checksum& operator=(const Checksum&) = delete;
  void add(const void* bytes, size_t size);
  uint64_t value() const;

 private:
  void* state_;
};
std::string hex(uint64_t value);  // 16 digits

std::string to_text(const Manifest& manifest);
// Throws CheckpointError naming `path` for anything but an undamaged manifest of this version.
Manifest parse_manifest(std::string_view text, const std::filesystem::path& path);
bool has_manifest(const std::filesystem::path& folder);  // one of ours, by its format entry; it may be damaged

// Adds another rank's part. Throws CheckpointError when both say different things of one tensor or share a file.
void merge(Manifest& into, const Manifest& part);
// Every element of every tensor must lie in exactly one piece; throws CheckpointError naming the tensor otherwise.
void check_coverage(const Manifest& manifest);

}  // namespace hyperparallel::checkpoint
