#include "data/tokenizer_bpe.h"

#include <xxhash.h>

#include <bit>
#include <queue>

#include "base/error.h"

namespace hyperparallel::data {
namespace {

constexpr uint32_t kNoRank = UINT32_MAX;
constexpr uint64_t kFreePair = UINT64_MAX;
constexpr size_t kShortPiece = 64;  // bytes; up to here rescanning an array beats a heap

uint64_t pair_key(uint64_t left, uint64_t right) {
  return left << 32 | right;
}
size_t pair_hash(uint64_t pair) {
  return (pair * 0x9E3779B97F4A7C15u) >> 32;
}
uint32_t word_hash(std::string_view word) {
  return static_cast<uint32_t>(XXH3_64bits(word.data(), word.size()));
}

}  // namespace

BytePairEncoder::BytePairEncoder(const std::array<int32_t, 256>& byte_ids, const std::vector<Token>& tokens,
                                 const std::vector<Merge>& merges, bool ignore_merges)
    : byte_ids_(byte_ids),
      pairs_(std::bit_ceil(2 * merges.size() + 1), PairSlot{kFreePair, {kNoRank, 0}}),
      byte_pairs_(256 * 256),
      words_by_hash_(std::bit_ceil(2 * tokens.size() + 1), WordSlot{}) {
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const Merge& merge = merges[rank];
    insert_pair(pair_key(merge.left, merge.right), {static_cast<uint32_t>(rank), static_cast<uint32_t>(merge.result)});
  }
  for (int left = 0; left < 256; ++left) {
    for (int right = 0; right < 256; ++right) byte_pairs_[left << 8 | right] = find_pair(byte_ids_[left], byte_ids_[right]);
  }
  std::vector<int64_t> ids;
  for (const Token& token : tokens) {
    ids.clear();
    if (!ignore_merges) encode(token.bytes, ids);  // the word table has no entry of these bytes yet
    if (ignore_merges || (ids.size() == 1 && ids[0] == token.id)) insert_word(token);
  }
}

void BytePairEncoder::insert_pair(uint64_t pair, MergeTo to) {
  size_t slot = pair_hash(pair) & (pairs_.size() - 1);
  while (pairs_[slot].pair != kFreePair && pairs_[slot].pair != pair) slot = (slot + 1) & (pairs_.size() - 1);
  pairs_[slot] = {pair, to};
}

BytePairEncoder::MergeTo BytePairEncoder::find_pair(uint32_t left, uint32_t right) const {
  const uint64_t pair = pair_key(left, right);
  size_t slot = pair_hash(pair) & (pairs_.size() - 1);
  while (pairs_[slot].pair != pair) {
    if (pairs_[slot].pair == kFreePair) return {kNoRank, 0};
    slot = (slot + 1) & (pairs_.size() - 1);
  }
  return pairs_[slot].to;
}

void BytePairEncoder::insert_word(const Token& token) {
  const uint32_t hash = word_hash(token.bytes);
  size_t slot = hash & (words_by_hash_.size() - 1);
  while (words_by_hash_[slot].length > 0) slot = (slot + 1) & (words_by_hash_.size() - 1);
  words_by_hash_[slot] = {hash, static_cast<uint32_t>(token.id), static_cast<uint32_t>(words_.size()),
                          static_cast<uint32_t>(token.bytes.size())};
  words_ += token.bytes;
  longest_word_ = std::max(longest_word_, token.bytes.size());
}

const BytePairEncoder::WordSlot* BytePairEncoder::find_word(std::string_view piece) const {
  if (piece.size() > longest_word_) return nullptr;
  const uint32_t hash = word_hash(piece);
  for (size_t slot = hash & (words_by_hash_.size() - 1);; slot = (slot + 1) & (words_by_hash_.size() - 1)) {
    const WordSlot& word = words_by_hash_[slot];
    if (word.length == 0) return nullptr;
    if (word.hash == hash && piece == std::string_view(words_).substr(word.begin, word.length)) return &word;
  }
}

void BytePairEncoder::encode(std::string_view piece, std::vector<int64_t>& ids) const {
  if (const WordSlot* word = find_word(piece)) {
    ids.push_back(word->id);
  } else if (piece.size() <= kShortPiece) {
    merge_short(piece, ids);
  } else {
    merge_long(piece, ids);
  }
}

void BytePairEncoder::merge_short(std::string_view piece, std::vector<int64_t>& ids) const {
  std::array<uint32_t, kShortPiece> symbols;
  std::array<MergeTo, kShortPiece> pairs;  // [i]: what symbols i and i + 1 become
  size_t count = piece.size();
  const auto* bytes = reinterpret_cast<const uint8_t*>(piece.data());
  for (size_t i = 0; i < count; ++i) symbols[i] = byte_ids_[bytes[i]];
  for (size_t i = 0; i + 1 < count; ++i) pairs[i] = byte_pairs_[bytes[i] << 8 | bytes[i + 1]];
  while (count > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < count; ++i) best = pairs[i].rank < pairs[best].rank ? i : best;
    if (pairs[best].rank == kNoRank) break;
    symbols[best] = pairs[best].result;
    --count;
    for (size_t i = best + 1; i < count; ++i) symbols[i] = symbols[i + 1];
    for (size_t i = best + 1; i + 1 < count; ++i) pairs[i] = pairs[i + 1];
    if (best > 0) pairs[best - 1] = find_pair(symbols[best - 1], symbols[best]);
    if (best + 1 < count) pairs[best] = find_pair(symbols[best], symbols[best + 1]);
  }
  ids.insert(ids.end(), symbols.begin(), symbols.begin() + count);
}

// A heap of candidate merges over a linked list of symbols: n log n, for runs that no split cuts.
void BytePairEncoder::merge_long(std::string_view piece, std::vector<int64_t>& ids) const {
  struct Symbol {
    uint32_t id;
    int32_t previous, next;  // -1: none
    bool alive;
  };
  struct Candidate {
    uint32_t rank;
    int32_t position;
    uint32_t left, right, result;  // left and right tell whether it is still true
    bool operator>(const Candidate& other) const { return rank != other.rank ? rank > other.rank : position > other.position; }
  };
  HP_CHECK(piece.size() < INT32_MAX, "a piece of {} bytes", piece.size());
  const auto size = static_cast<int32_t>(piece.size());
  std::vector<Symbol> symbols(size);
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> heap;
  for (int32_t i = 0; i < size; ++i) {
    symbols[i] = {static_cast<uint32_t>(byte_ids_[static_cast<uint8_t>(piece[i])]), i - 1, i + 1 < size ? i + 1 : -1, true};
  }
  const auto push = [&](int32_t left) {
    if (left < 0 || symbols[left].next < 0) return;
    const uint32_t left_id = symbols[left].id, right_id = symbols[symbols[left].next].id;
    const MergeTo to = find_pair(left_id, right_id);
    if (to.rank != kNoRank) heap.push({to.rank, left, left_id, right_id, to.result});
  };
  for (int32_t i = 0; i < size; ++i) push(i);
  while (!heap.empty()) {
    const Candidate best = heap.top();
    heap.pop();
    Symbol& left = symbols[best.position];
    if (!left.alive || left.id != best.left || left.next < 0 || symbols[left.next].id != best.right) continue;
    Symbol& right = symbols[left.next];
    left.id = best.result;
    left.next = right.next;
    right.alive = false;
    if (right.next >= 0) symbols[right.next].previous = best.position;
    push(left.previous);
    push(best.position);
  }
  for (int32_t i = 0; i >= 0; i = symbols[i].next) ids.push_back(symbols[i].id);
}

}  // namespace hyperparallel::data
