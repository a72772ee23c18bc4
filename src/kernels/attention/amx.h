// The same as pairs.h with the processor's products of tiles (AMX), which are several times as fast: up to 32 keys at a time meet
// 8 or 16 heads. Keys are copied beside each other once, as they are for logits and in pairs of keys for outputs and gradients:
// those of windows for a block of queries (tokens.h, NOTE [Blocks of queries]), the chosen ones for each. Results are those of
// pairs.h but for the order of sums.
#pragma once

#include "kernels/attention/pairs.h"

namespace hyperparallel::kernels::attention {

class TileAttention {
 public:
  // Whether this processor has such products, this process may use them, and keys of `d` channels are whole tiles.
  static bool takes(int64_t d);

  TileAttention(int64_t heads, int64_t d, int64_t most_keys);

  int64_t block_queries() const { return block_queries_; }
  // rows [count, d], at most `most_keys` and one for each query of a block.
  void begin_block(const Bfloat16Bits* rows, int64_t count);
  void end_block(float* drows);

  // As those of PairAttention.
  void forward(const Query<Bfloat16Bits>& query, float* out);
  void backward(const Query<Bfloat16Bits>& query, const Bfloat16Bits* gradient, float* dq, float* const* dkeys, float* dsink);
  void add_attention(const Query<Bfloat16Bits>& query, float* sums);

 private:
  template <class Body>
  void with_products(const Query<Bfloat16Bits>& query, const Body& body);

  PairScratch scratch_;
  int64_t d_, block_queries_;
  std::vector<Bfloat16Bits> keys_, near_;                   // chosen and window keys [keys, d]
  std::vector<uint32_t> key_pairs_, near_pairs_, columns_;  // [keys / 2, d] twice; [lanes, keys / 2]
  std::vector<float> sums_;                                 // [16, d]
  // What backward left for end_block, for each query and block of its heads: [near rows, lanes], [lanes, d].
  std::vector<uint32_t> near_weights_, near_both_;
  int64_t near_rows_ = 0, left_ = 0;
};

}  // namespace hyperparallel::kernels::attention
