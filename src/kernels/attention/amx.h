// The same as pairs.h with the processor's products of tiles (AMX), which are several times as fast: up to 32 keys at a time meet
// 8 or 16 heads. The keys of a query are copied beside each other once, as they are for logits and in pairs of keys for outputs
// and gradients. Results are those of pairs.h but for the order of sums.
#pragma once

#include "kernels/attention/pairs.h"

namespace hyperparallel::kernels::attention {

class TileAttention {
 public:
  // Whether this processor has such products, this process may use them, and keys of `d` channels are whole tiles.
  static bool takes(int64_t d);

  TileAttention(int64_t heads, int64_t d, int64_t most_keys);

  // As those of PairAttention.
  void forward(const Query<Bfloat16Bits>& query, float* out);
  void backward(const Query<Bfloat16Bits>& query, const Bfloat16Bits* gradient, float* dq, float* const* dkeys, float* dsink);
  void add_attention(const Query<Bfloat16Bits>& query, float* sums);

 private:
  PairScratch scratch_;
  std::vector<Bfloat16Bits> keys_;             // [keys, d]
  std::vector<uint32_t> key_pairs_, columns_;  // [keys / 2, d]; [lanes, keys / 2]
  std::vector<float> sums_;                    // [16, d]
};

}  // namespace hyperparallel::kernels::attention
