// Reads tensors of a safetensors file as plain vectors, for tests that do without libtorch.
#pragma once

#include <cstring>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "support/test_data.h"

namespace hyperparallel::test {

class SafetensorsFile {
 public:
  explicit SafetensorsFile(const std::string& path) : bytes_(read_file(path)) {
    uint64_t header_size = 0;
    std::memcpy(&header_size, bytes_.data(), sizeof header_size);
    header_ = nlohmann::json::parse(bytes_.substr(8, header_size));
    begin_ = 8 + header_size;
  }

  bool contains(const std::string& name) const { return header_.contains(name); }
  std::vector<int64_t> shape(const std::string& name) const { return header_.at(name).at("shape"); }

  // All elements in row-major order; T has the size of the stored type.
  template <class T>
  std::vector<T> values(const std::string& name) const {
    const auto& entry = header_.at(name);
    size_t count = 1;
    for (const size_t side : entry.at("shape")) count *= side;
    const size_t first = entry.at("data_offsets")[0], last = entry.at("data_offsets")[1];
    if (last - first != count * sizeof(T)) throw std::runtime_error(name + " has another type");
    std::vector<T> values(count);
    std::memcpy(values.data(), bytes_.data() + begin_ + first, last - first);
    return values;
  }

 private:
  std::string bytes_;
  nlohmann::json header_;
  size_t begin_ = 0;
};

}  // namespace hyperparallel::test
