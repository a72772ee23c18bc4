// One saved checkpoint, read: tensors by name, whole or in part, on any layout; documents; integrity.
#pragma once

#include "base/aten.h"

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/manifest.h"
#include "checkpoint/safetensors.h"

namespace hyperparallel::checkpoint {

// Opening reads the manifest, and checks that every file is there with its size and header and that pieces cover all tensors.
// Throws CheckpointError naming the file, and the tensor where one is concerned. Immutable: threads may share it.
class Checkpoint {
 public:
  explicit Checkpoint(const std::filesystem::path& folder);  // the folder that holds manifest.json

  const std::filesystem::path& folder() const { return folder_; }
  int64_t step() const { return manifest_.step; }
  const std::map<std::string, StoredTensor>& tensors() const { return manifest_.tensors; }
  bool has(const std::string& name) const { return manifest_.tensors.contains(name); }

  // The whole tensor, global shape, CPU. Verifies the checksum of each piece.
  at::Tensor load(const std::string& name) const;
  // Elements [offset, offset + size) of every dimension of the global tensor, CPU; reads only the bytes needed and does not
  // verify them (verify() does).
  at::Tensor load_box(const std::string& name, const std::vector<int64_t>& offset, const std::vector<int64_t>& size) const;

  bool has_document(const std::string& name) const { return manifest_.documents.contains(name); }
  std::vector<std::string> documents() const;
  std::string document(const std::string& name) const;  // verified

  // Reads every byte and compares all checksums; throws one CheckpointError that lists everything wrong (at most 20 lines).
  void verify() const;

 private:
  const StoredTensor& stored(const std::string& name) const;
  const SafetensorsReader& shard(const std::string& file) const { return *shards_.at(file); }
  void check_piece(const std::string& name, const StoredPiece& piece) const;

  std::filesystem::path folder_;
  Manifest manifest_;
  std::map<std::string, std::unique_ptr<SafetensorsReader>> shards_;
};

}  // namespace hyperparallel::checkpoint
