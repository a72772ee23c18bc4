// The byte alphabet of byte-level BPE: one printable character for each of the 256 bytes.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace hyperparallel::data {

// The character that stands for `byte`, as UTF-8.
std::string byte_to_alphabet(uint8_t byte);
// The bytes that `token` spells, or nothing if one of its characters is not in the alphabet.
std::optional<std::string> alphabet_to_bytes(std::string_view token);

}  // namespace hyperparallel::data
