// Engram token classes: tokens that read the same (case, accents, width, white space) share one compressed id.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "data/tokenizer.h"

namespace hyperparallel::data {

struct EngramTokenMap {
  std::vector<int32_t> map;  // [tokenizer.size()]: token id to class
  int64_t classes = 0;
};

// Classes are numbered in order of first appearance from id 0. Rules: docs/model.md, Engram. Throws DataError when the tokenizer
// has unused ids between its tokens.
EngramTokenMap build_engram_token_map(const Tokenizer& tokenizer);

// What decides the class of a token that decodes to `text` (valid UTF-8 without U+FFFD): NFKC, NFD, no marks, lower case, white
// space collapsed and trimmed; `text` itself if nothing is left.
std::string engram_key(std::string_view text);

}  // namespace hyperparallel::data
