// The best of scores that come piece by piece, and the scores of a tile: the inner loops of tiles.cpp. T is float or double.
#pragma once

#include <cstdint>
#include <limits>
#include <type_traits>
#include <utility>
#include <vector>

namespace hyperparallel::kernels::indexer {

constexpr int64_t kPanel = 64;  // groups that are scored at a time

// The `k` numbers with the largest scores, the smaller number first among equals. Numbers come in rising order. A number that
// does not beat the k-th best so far can never be among them, so it is passed over; the others are kept, at most 2 k at a time.
template <class T>
class Best {
 public:
  explicit Best(int64_t k);

  // first, first + 1, ... have these scores, of which none is above `most`.
  void add(const T* scores, int64_t count, int64_t first, T most) {
    if (most > threshold_) add_those_above(scores, count, first);
  }
  // What a number has to beat.
  T threshold() const { return threshold_; }
  // In rising order, each plus `offset`; then -1 up to `width`, which is at least k.
  void write(int64_t offset, int64_t width, int32_t* out);

 private:
  using Key = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;
  void add_those_above(const T* scores, int64_t count, int64_t first);
  void keep_best();

  int64_t k_, size_ = 0;
  T threshold_;  // of k better or equal ones
  // Of those that are kept, in rising order of numbers; keys: scratch.
  std::vector<T> scores_;
  std::vector<int32_t> numbers_;
  std::vector<Key> keys_;
};

// The `k` blocks of `block_size` consecutive numbers with the best numbers, and always the last block.
template <class T>
class BestBlocks {
 public:
  BestBlocks(int64_t k, int64_t block_size) : block_size_(block_size), best_(k) {}

  // The scores of numbers begin ... end - 1, of which none is above `most`. They come in order from 0, none is left out.
  void add(const T* scores, int64_t begin, int64_t end, T most);
  void write(int64_t width, int32_t* out);

 private:
  void close_block();

  int64_t block_size_, block_ = 0, added_ = 0;
  T most_ = -std::numeric_limits<T>::infinity();  // of the block so far
  Best<T> best_;
};

// Scores of queries for the groups of a panel: out[q][g] = sum over h of weights[q][h] max(dots[q][h][g], 0), and the most of
// every query. dots [queries, heads, kPanel], weights [queries, heads], rows of `out` are `stride` apart, most [queries].
template <class T>
void combine_heads(int64_t queries, int64_t heads, const T* dots, const T* weights, T* out, int64_t stride, T* most);

}  // namespace hyperparallel::kernels::indexer
