// SHA-256 of values in memory, as published digests of tensors are given.
#pragma once

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>
#include <string>
#include <vector>

namespace hyperparallel::test {

template <class T>
std::string sha256(const std::vector<T>& values) {
  std::array<unsigned char, 32> digest;
  EVP_Digest(values.data(), values.size() * sizeof(T), digest.data(), nullptr, EVP_sha256(), nullptr);
  return fmt::format("{:02x}", fmt::join(digest, ""));
}

}  // namespace hyperparallel::test
