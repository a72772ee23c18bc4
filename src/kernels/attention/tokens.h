// Attention of single queries over keys that lie anywhere, as plain loops: the inner part of fused.cpp. Keys are read where they
// are, through a list of rows; nothing is gathered. Lanes are heads: a block of up to 16 of them shares every key that is loaded.
#pragma once

#include <cstdint>
#include <type_traits>
#include <vector>

namespace hyperparallel::kernels::attention {

// One query of all heads of the rank, and the keys it sees. E is float, double or Bfloat16Bits (kernels/storage.h).
template <class E>
struct Query {
  using T = std::conditional_t<std::is_same_v<E, double>, double, float>;
  int64_t heads, d;
  const E* q;            // [heads, d]
  const E* const* keys;  // [count] rows of d
  int64_t count;
  const T* sink;           // [heads]
  int64_t near, near_row;  // the first `near` keys are rows near_row .. of the block's
  // q and keys are BF16, perhaps widened: products, scaled logits and the probabilities that values are mixed with are rounded to
  // it, as a composition of BF16 operations does.
  bool rounds = false;
};

// NOTE [Blocks of queries]: the windows of neighbouring queries overlap. A kernel may prepare the rows that a block of up to
// `block_queries` of them see once, and sum the gradients of these rows over the block: begin_block(rows, count), the queries,
// and after backward end_block(drows), which adds to the gradients what `backward` has not. This is one that does nothing so.
struct SingleQueries {
  int64_t block_queries() const { return 1; }
  void begin_block(const void*, int64_t) {}
  void end_block(void*) {}
};

// Scratch of a thread.
template <class T>
class TokenAttention : public SingleQueries {
 public:
  TokenAttention(int64_t heads, int64_t d, int64_t most_keys);

  // out [heads, d]
  void forward(const Query<T>& query, T* out);

  // `gradient` [heads, d] of `out`. Adds to dkeys[i] (rows of d, no two alike), at the latest in end_block, and dsink; sets dq
  // [heads, d].
  void backward(const Query<T>& query, const T* gradient, T* dq, T* const* dkeys, T* dsink);

  // Adds to sums [count] the attention that each key gets, over all heads.
  void add_attention(const Query<T>& query, T* sums);

 private:
  int lanes_;              // of a block of heads: 4, 8 or 16
  int64_t blocks_;         // of heads
  std::vector<T> q_, g_;   // [d, lanes] of one block
  std::vector<T> p_, dp_;  // [keys, lanes]
};

}  // namespace hyperparallel::kernels::attention
