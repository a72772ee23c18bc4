// Reader of `tokenizer.json`: its content as plain values, checked against what the tokenizer supports.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace hyperparallel::data {

struct AddedToken {
  int64_t id = 0;
  std::string content;
  bool normalized = false;
  bool special = false;
};

struct TokenizerFile {
  std::string path;
  std::vector<std::pair<std::string, int64_t>> vocabulary;  // spelt in the byte alphabet
  std::vector<std::pair<std::string, std::string>> merges;  // by rank
  std::vector<AddedToken> added_tokens;
  std::vector<std::string> splits;  // regular expressions, applied one after another, matches isolated
  bool ignore_merges = false;       // a piece that is a vocabulary entry is taken whole
};

// Throws DataError naming the key when the file is missing, broken, or asks for something that is not supported.
TokenizerFile read_tokenizer_file(const std::string& path);

}  // namespace hyperparallel::data
