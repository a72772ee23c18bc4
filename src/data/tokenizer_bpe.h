// Byte-pair encoding of one piece: the pair of lowest rank is merged first, of equal pairs the leftmost, until none is left.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hyperparallel::data {

class BytePairEncoder {
 public:
  struct Token {
    std::string bytes;
    int32_t id;
  };
  struct Merge {
    int32_t left, right, result;  // ids
  };

  // `byte_ids`: id of each single byte. `tokens`: the vocabulary entries that bytes can become. `merges`: by rank; of a pair
  // named twice the later counts. `ignore_merges`: a piece that is a vocabulary entry is that entry, whatever the merges give.
  BytePairEncoder(const std::array<int32_t, 256>& byte_ids, const std::vector<Token>& tokens, const std::vector<Merge>& merges,
                  bool ignore_merges);

  // Appends the ids of `piece`, which is not empty.
  void encode(std::string_view piece, std::vector<int64_t>& ids) const;

 private:
  struct MergeTo {
    uint32_t rank, result;
  };
  struct PairSlot {
    uint64_t pair;
    MergeTo to;
  };
  struct WordSlot {
    uint32_t hash, id, begin, length;  // bytes are words_[begin, begin + length); length 0: the slot is free
  };

  MergeTo find_pair(uint32_t left, uint32_t right) const;
  void insert_pair(uint64_t pair, MergeTo to);
  const WordSlot* find_word(std::string_view piece) const;
  void insert_word(const Token& token);
  void merge_short(std::string_view piece, std::vector<int64_t>& ids) const;
  void merge_long(std::string_view piece, std::vector<int64_t>& ids) const;

  std::array<int32_t, 256> byte_ids_;
  std::vector<PairSlot> pairs_;      // open addressing, a power of two
  std::vector<MergeTo> byte_pairs_;  // [256 * 256], the pairs of two single bytes
  // The whole-word table: pieces that encode to one id. Most pieces of a text are.
  std::vector<WordSlot> words_by_hash_;
  std::string words_;
  size_t longest_word_ = 0;
};

}  // namespace hyperparallel::data
