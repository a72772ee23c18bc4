// safetensors files: a strict reader over mmap and a deterministic writer.
//
// File: 8 bytes little-endian header length; a JSON object, name -> {dtype, shape, data_offsets}, and `__metadata__` string ->
// string; tensor bytes, little-endian, row-major. Refused, with file and tensor named (CheckpointError): a header over 100 MB or
// not a JSON object, duplicate names, unknown keys or dtypes, size other than shape x dtype, offsets that leave a hole, overlap,
// or do not end at the file's end.
#pragma once

#include "base/aten.h"

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace hyperparallel::checkpoint {

struct TensorInfo {
  std::string name;
  std::string dtype;  // as in the file: F64 F32 F16 BF16 I64 I32 I16 I8 U64 U32 U16 U8 BOOL, or one we only list
  std::optional<at::ScalarType> scalar_type;  // none: known to the format, but not loaded by this program (F8_E4M3, F4, ...)
  std::vector<int64_t> shape;
  int64_t offset = 0;  // of its first byte, from the first byte after the header
  int64_t bytes = 0;
};

// An open, checked file. Immutable, so threads may share it. Tensors that it hands out own their memory.
class SafetensorsReader {
 public:
  explicit SafetensorsReader(const std::filesystem::path& path);
  ~SafetensorsReader();
  SafetensorsReader(const SafetensorsReader&) = delete;
  SafetensorsReader& operator=(const SafetensorsReader&) = delete;

  const std::filesystem::path& path() const { return path_; }
  const std::vector<TensorInfo>& tensors() const { return tensors_; }  // in order of their bytes
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  bool has(const std::string& name) const { return by_name_.contains(name); }
  const TensorInfo& info(const std::string& name) const;  // throws CheckpointError when absent

  at::Tensor tensor(const std::string& name) const;  // CPU copy
  // Rows and columns [offset, offset + size) of every dimension, as a CPU copy; touches only the pages that hold them.
  at::Tensor box(const std::string& name, const std::vector<int64_t>& offset, const std::vector<int64_t>& size) const;
  std::span<const uint8_t> bytes(const std::string& name) const;     // of one tensor, in the mapped file
  std::span<const uint8_t> header() const { return {map_, data_}; }  // length field, JSON and padding

 private:
  void parse(const std::string& file);

  std::filesystem::path path_;
  const uint8_t* map_ = nullptr;
  const uint8_t* data_ = nullptr;  // first byte after the header
  int64_t size_ = 0;
  std::vector<TensorInfo> tensors_;
  std::unordered_map<std::string, size_t> by_name_;
  std::map<std::string, std::string> metadata_;
};

using NamedTensor = std::pair<std::string, at::Tensor>;

struct TensorSpec {
  std::string name;
  at::ScalarType type;
  std::vector<int64_t> shape;
};

// Name in the file of a dtype, for example F32. CheckpointError for one that safetensors files of ours never hold.
const char* safetensors_dtype(at::ScalarType type);

at::ScalarType scalar_type_of(const std::string& dtype);  // the inverse; CheckpointError for what is not loaded

// Gives a tensor, whole or in parts that follow each other along its first dimension.
using Take = std::function<void(const at::Tensor&)>;

// Writes a whole file, atomically and durably (base/file.h), and returns its header (length field, JSON, spaces to a multiple of
// 8). Widest dtype first, so that each tensor is aligned to its element, then by name: the same tensors and metadata give the
// same bytes. `give` is called once a tensor, in that order; what it gives is converted to the dtype of the spec.
std::string write_safetensors(const std::filesystem::path& path, std::vector<TensorSpec> specs,
                              const std::function<void(const std::string& name, const Take& take)>& give,
                              const std::map<std::string, std::string>& metadata = {{"format", "pt"}});
std::string write_safetensors(const std::filesystem::path& path, const std::vector<NamedTensor>& tensors,
                              const std::map<std::string, std::string>& metadata = {{"format", "pt"}});

// All tensors of a file by name.
std::map<std::string, at::Tensor> read_all(const std::filesystem::path& path);

}  // namespace hyperparallel::checkpoint
