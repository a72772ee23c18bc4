// What the image tests share: golden files, digests, encoding of pictures.
#pragma once

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "data/image.h"

namespace hyperparallel::data {

inline const std::filesystem::path kGoldenData = std::filesystem::path(HP_SOURCE_DIR) / "tests/golden/data";
inline const std::filesystem::path kTestImages = std::filesystem::path(HP_SOURCE_DIR) / "tests/data/images";

inline std::vector<uint8_t> read_bytes(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot open " + path.string());
  return {std::istreambuf_iterator<char>(file), {}};
}

inline std::vector<nlohmann::json> read_json_lines(const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file) throw std::runtime_error("cannot open " + path.string());
  std::vector<nlohmann::json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

template <class T>
std::string sha256(const std::vector<T>& values) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned int size = 0;
  EVP_Digest(values.data(), values.size() * sizeof(T), digest.data(), &size, EVP_sha256(), nullptr);
  std::string text;
  for (unsigned int i = 0; i < size; ++i) text += fmt::format("{:02x}", digest[i]);
  return text;
}

// The bytes of one tensor of a safetensors file.
class Tensors {
 public:
  explicit Tensors(const std::filesystem::path& path) : bytes_(read_bytes(path)) {
    uint64_t header_size = 0;
    for (int i = 7; i >= 0; --i) header_size = header_size << 8 | bytes_[static_cast<size_t>(i)];
    data_ = 8 + header_size;
    header_ = nlohmann::json::parse(bytes_.begin() + 8, bytes_.begin() + static_cast<std::ptrdiff_t>(data_));
  }
  std::vector<int64_t> shape(const std::string& name) const { return header_.at(name).at("shape"); }
  std::vector<uint8_t> bytes(const std::string& name) const {
    const std::vector<size_t> range = header_.at(name).at("data_offsets");
    const auto begin = bytes_.begin() + static_cast<std::ptrdiff_t>(data_);
    return {begin + static_cast<std::ptrdiff_t>(range[0]), begin + static_cast<std::ptrdiff_t>(range[1])};
  }

 private:
  std::vector<uint8_t> bytes_;
  size_t data_;
  nlohmann::json header_;
};

}  // namespace hyperparallel::data
