// The same as tokens.h for BF16, with the processor's products of pairs of BF16 numbers (AVX512-BF16), which are twice as fast as
// those of FP32: neighbouring channels of a key are a pair for logits, neighbouring keys for outputs and the queries' gradients,
// and what reaches a key from logits and from outputs for its gradient. Sums and softmax are FP32; probabilities and the
// gradients of logits are rounded to BF16 before they are multiplied, as a composition of BF16 operations does.
#pragma once

#include "kernels/attention/tokens.h"
#include "kernels/storage.h"

namespace hyperparallel::kernels::attention {

// Memory of a thread.
struct PairScratch {
  static constexpr int64_t kKeyUnit = 32;
  int lanes;                             // of a block of heads: 8 or 16
  int64_t blocks;                        // of heads
  std::vector<uint32_t> q, g, both;      // [d / 2, lanes] of one block; [lanes, d]
  std::vector<float> p, dp;              // [keys, lanes]
  std::vector<uint32_t> pairs, weights;  // [keys / 2, lanes], [keys, lanes]

  PairScratch(int64_t heads, int64_t d, int64_t most_keys)
      : lanes(heads <= 8 ? 8 : 16),
        blocks((heads + lanes - 1) / lanes),
        q(d / 2 * lanes),
        g(d / 2 * lanes),
        both(d * lanes),
        p((most_keys + kKeyUnit) * lanes),
        dp((most_keys + kKeyUnit) * lanes),
        pairs((most_keys + kKeyUnit) / 2 * lanes),
        weights((most_keys + kKeyUnit) * lanes) {}
};

class PairAttention : public SingleQueries {
 public:
  // Whether this processor has such products, and keys of `d` channels are whole vectors.
  static bool takes(int64_t d);

  PairAttention(int64_t heads, int64_t d, int64_t most_keys);

  // As those of TokenAttention.
  void forward(const Query<Bfloat16Bits>& query, float* out);
  void backward(const Query<Bfloat16Bits>& query, const Bfloat16Bits* gradient, float* dq, float* const* dkeys, float* dsink);
  void add_attention(const Query<Bfloat16Bits>& query, float* sums);

 private:
  PairScratch scratch_;
};

}  // namespace hyperparallel::kernels::attention
