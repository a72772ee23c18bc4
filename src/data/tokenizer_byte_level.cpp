#include "data/tokenizer_byte_level.h"

#include <unicode/utf8.h>

#include <array>
#include <cstdint>

namespace hyperparallel::data {
namespace {

// Printable Latin-1 bytes stand for themselves, the others for U+0100, U+0101, ... in order.
struct Alphabet {
  std::array<uint16_t, 256> character{};
  std::array<int16_t, 0x144> byte{};

  constexpr Alphabet() {
    byte.fill(-1);
    uint16_t next = 0x100;
    for (int b = 0; b < 256; ++b) {
      const bool printable = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
      character[b] = printable ? b : next++;
      byte[character[b]] = b;
    }
  }
};
constexpr Alphabet kAlphabet;

}  // namespace

std::string byte_to_alphabet(uint8_t byte) {
  const uint16_t c = kAlphabet.character[byte];
  if (c < 0x80) return std::string(1, static_cast<char>(c));
  return {static_cast<char>(0xC0 | (c >> 6)), static_cast<char>(0x80 | (c & 0x3F))};
}

std::optional<std::string> alphabet_to_bytes(std::string_view token) {
  std::string bytes;
  for (size_t i = 0; i < token.size();) {
    UChar32 c;
    U8_NEXT(token.data(), i, token.size(), c);
    if (c < 0 || c >= static_cast<UChar32>(kAlphabet.byte.size()) || kAlphabet.byte[c] < 0) return std::nullopt;
    bytes += static_cast<char>(kAlphabet.byte[c]);
  }
  return bytes;
}

}  // namespace hyperparallel::data
