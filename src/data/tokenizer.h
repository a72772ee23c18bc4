// Tokenizer: byte-level BPE read from a Hugging Face `tokenizer.json`; text to ids and back, equal to the `tokenizers` library.
//
// Covered: BPE whose vocabulary holds all 256 bytes, merges in both spellings, `Split` (regex, isolated) and `ByteLevel`
// pre-tokenizers, an empty normaliser, added tokens without trimming. A file that asks for more is refused by name, never
// approximated. Special tokens are never inserted (as `add_special_tokens=False`): the chat encoding writes its own.
// NOTE [Unicode version]: letters, marks, numbers and punctuation are those of the ICU in use; `\s` is exactly White_Space.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hyperparallel::data {

class Tokenizer {
 public:
  // Reads a tokenizer.json. Throws DataError (file, key, what was found, what is accepted).
  static Tokenizer load(const std::string& path);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // All const methods may be called from several threads at once.

  // Added tokens are cut out first, the rest goes through the splits and the merges. Throws DataError if `text` is not UTF-8.
  std::vector<int64_t> encode(std::string_view text) const;

  // Bytes of all ids joined, then made valid UTF-8: each maximal ill-formed sequence becomes one U+FFFD.
  // Throws DataError for an id that the file does not have.
  std::string decode(std::span<const int64_t> ids, bool skip_special_tokens = false) const;

  // Id of a token as the file spells it: byte alphabet for ordinary tokens, plain text for added ones.
  std::optional<int64_t> token_to_id(std::string_view token) const;
  // The same, but a missing token is a DataError that names the file.
  int64_t required_id(std::string_view token) const;
  const std::string& stored_string(int64_t id) const;

  bool is_added(int64_t id) const;
  bool is_special(int64_t id) const;
  // Largest id + 1.
  int64_t size() const;
  const std::string& path() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<const Impl> impl);
  std::unique_ptr<const Impl> impl_;
};

}  // namespace hyperparallel::data
