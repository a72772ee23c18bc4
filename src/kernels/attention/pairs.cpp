#include "kernels/attention/pairs.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "kernels/attention/softmax.h"
#include "kernels/gemm/transpose.h"

#if defined(__x86_64__)
#include <immintrin.h>

namespace hyperparallel::kernels::attention {

bool PairAttention::takes(int64_t d) {
  static const bool has = __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vl") &&
                          __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq");
  return has && d % 16 == 0;
}

PairAttention::PairAttention(int64_t heads, int64_t d, int64_t most_keys) : scratch_(heads, d, most_keys) {}

#pragma GCC push_options
#pragma GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx2,fma,prefer-vector-width=512")
}  // namespace hyperparallel::kernels::attention
#include "kernels/attention/pair_block.h"
namespace hyperparallel::kernels::attention {
namespace {

using Bits = Bfloat16Bits;

HP_INLINE uint32_t pair_at(const Bits* from) {
  uint32_t pair;
  std::memcpy(&pair, from, sizeof(pair));
  return pair;
}

// Sums of L heads.
template <int L>
struct Lanes;
template <>
struct Lanes<8> {
  using Sum = __m256;
  using Pairs = __m256i;
  HP_INLINE static Sum zero() { return _mm256_setzero_ps(); }
  HP_INLINE static Pairs load(const uint32_t* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
  HP_INLINE static Sum add(Sum sum, Pairs a, uint32_t b) {
    return _mm256_dpbf16_ps(sum, (__m256bh)a, (__m256bh)_mm256_set1_epi32(static_cast<int>(b)));
  }
  HP_INLINE static void store(float* to, Sum sum) { _mm256_storeu_ps(to, sum); }
};
template <>
struct Lanes<16> {
  using Sum = __m512;
  using Pairs = __m512i;
  HP_INLINE static Sum zero() { return _mm512_setzero_ps(); }
  HP_INLINE static Pairs load(const uint32_t* from) { return _mm512_loadu_si512(from); }
  HP_INLINE static Sum add(Sum sum, Pairs a, uint32_t b) {
    return _mm512_dpbf16_ps(sum, (__m512bh)a, (__m512bh)_mm512_set1_epi32(static_cast<int>(b)));
  }
  HP_INLINE static void store(float* to, Sum sum) { _mm512_storeu_ps(to, sum); }
};

HP_INLINE __m512 add(__m512 sum, __m512i a, uint32_t b) {
  return Lanes<16>::add(sum, a, b);
}

// NOTE [Registers]: the blocks are functions of their own, or the compiler runs out of registers for their addresses. Each has
// sums enough to hide the latency of its products.
//
// out [kKeys, L]: products of each key with L heads of x [pairs, L].
constexpr int kKeys = 8;
template <int L>
[[gnu::noinline]] void dots_block(const uint32_t* x, const Bits* const* keys, int64_t pairs, float* out) {
  using V = Lanes<L>;
  constexpr int kParts = 16 / L;  // of the channels: even ones and odd ones
  typename V::Sum sum[kKeys][kParts];
  const Bits* key[kKeys];
#pragma GCC unroll 8
  for (int k = 0; k < kKeys; ++k) {
    key[k] = keys[k];
#pragma GCC unroll 2
    for (int part = 0; part < kParts; ++part) sum[k][part] = V::zero();
  }
  for (int64_t j = 0; j < pairs; j += kParts) {
#pragma GCC unroll 2
    for (int part = 0; part < kParts; ++part) {
      const auto heads = V::load(x + (j + part) * L);
#pragma GCC unroll 8
      for (int k = 0; k < kKeys; ++k) sum[k][part] = V::add(sum[k][part], heads, pair_at(key[k] + 2 * (j + part)));
    }
  }
#pragma GCC unroll 8
  for (int k = 0; k < kKeys; ++k) V::store(out + k * L, kParts == 1 ? sum[k][0] : sum[k][0] + sum[k][kParts - 1]);
}

// out [count, L]: products of each key with L heads of x [d / 2, L].
template <int L>
HP_INLINE void dots(const uint32_t* x, const Bits* const* keys, int64_t count, int64_t d, float* out) {
  int64_t i = 0;
  for (; i + kKeys <= count; i += kKeys) dots_block<L>(x, keys + i, d / 2, out + i * L);
  if (i == count) return;
  const Bits* last[kKeys];
  float sums[kKeys * L];
  for (int k = 0; k < kKeys; ++k) last[k] = keys[std::min(i + k, count - 1)];
  dots_block<L>(x, last, d / 2, sums);
  std::copy(sums, sums + (count - i) * L, out + i * L);
}

// Pairs (low, high) of 32 columns. Unpacking goes by parts of a register, so `first` has columns 0-3, 8-11, 16-19 and 24-27.
struct PairColumns {
  __m512i first, second;
};
HP_INLINE PairColumns interleaved(const Bits* low, const Bits* high) {
  const __m512i a = _mm512_loadu_si512(low), b = _mm512_loadu_si512(high);
  return {_mm512_unpacklo_epi16(a, b), _mm512_unpackhi_epi16(a, b)};
}
// Such columns in order.
HP_INLINE void store_columns(__m512 first, __m512 second, float* to) {
  const __m512i low = _mm512_setr_epi32(0, 1, 2, 3, 16, 17, 18, 19, 4, 5, 6, 7, 20, 21, 22, 23),
                high = _mm512_setr_epi32(8, 9, 10, 11, 24, 25, 26, 27, 12, 13, 14, 15, 28, 29, 30, 31);
  _mm512_storeu_ps(to, _mm512_permutex2var_ps(first, low, second));
  _mm512_storeu_ps(to + 16, _mm512_permutex2var_ps(first, high, second));
}
// 16 columns in order.
HP_INLINE __m512i interleaved_half(const Bits* low, const Bits* high) {
  const auto wide = [](const Bits* from) __attribute__((always_inline)) {
    return _mm512_maskz_cvtepu16_epi32(0xffff, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  };
  return _mm512_or_si512(wide(low), _mm512_maskz_slli_epi32(0xffff, wide(high), 16));
}

// out[h][..] = sum over keys of w[key, h] key, of 16 C columns from `column`, for H heads from `first`; w in pairs of keys.
template <int L, int H, int C>
[[gnu::noinline]] void mix_block(const uint32_t* w, const Bits* const* keys, int64_t count, int64_t d, int64_t column,
                                 int64_t first, float* out) {
  __m512 sum[H][C];
#pragma GCC unroll 8
  for (int h = 0; h < H; ++h)
#pragma GCC unroll 2
    for (int c = 0; c < C; ++c) sum[h][c] = _mm512_setzero_ps();
  const uint32_t* own = w + first;
  for (int64_t i = 0; i < count; i += 2, own += L) {
    const Bits *low = keys[i] + column, *high = keys[std::min(i + 1, count - 1)] + column;
    if constexpr (C == 2) {
      const PairColumns key = interleaved(low, high);
#pragma GCC unroll 8
      for (int h = 0; h < H; ++h) sum[h][0] = add(sum[h][0], key.first, own[h]), sum[h][1] = add(sum[h][1], key.second, own[h]);
    } else {
      const __m512i key = interleaved_half(low, high);
#pragma GCC unroll 8
      for (int h = 0; h < H; ++h) sum[h][0] = add(sum[h][0], key, own[h]);
    }
  }
#pragma GCC unroll 8
  for (int h = 0; h < H; ++h) {
    float* to = out + (first + h) * d + column;
    if constexpr (C == 2) {
      store_columns(sum[h][0], sum[h][1], to);
    } else {
      _mm512_storeu_ps(to, sum[h][0]);
    }
  }
}
template <int L, int C>
HP_INLINE void mix_columns(const uint32_t* w, const Bits* const* keys, int64_t count, int64_t d, int64_t column, int64_t heads,
                           float* out) {
  int64_t h = 0;
  for (; h + 8 <= heads; h += 8) mix_block<L, 8, C>(w, keys, count, d, column, h, out);
  for (; h + 2 <= heads; h += 2) mix_block<L, 2, C>(w, keys, count, d, column, h, out);
  for (; h < heads; ++h) mix_block<L, 1, C>(w, keys, count, d, column, h, out);
}
// out [heads, d]
template <int L>
HP_INLINE void mix(const uint32_t* w, const Bits* const* keys, int64_t count, int64_t d, int64_t heads, float* out) {
  int64_t column = 0;
  for (; column + 32 <= d; column += 32) mix_columns<L, 2>(w, keys, count, d, column, heads, out);
  for (; column < d; column += 16) mix_columns<L, 1>(w, keys, count, d, column, heads, out);
}

// to[i] += sum over heads of weights[i, h] . both[h], for K keys, which are different ones; both [heads, d] and weights [count,
// L] are pairs.
template <int L, int K, int C>
[[gnu::noinline]] void spread_block(const uint32_t* weights, const uint32_t* both, int64_t d, int64_t heads, int64_t column,
                                    float* const* to) {
  __m512 sum[K][C];
#pragma GCC unroll 4
  for (int k = 0; k < K; ++k)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) sum[k][c] = _mm512_loadu_ps(to[k] + column + 16 * c);
  for (int64_t h = 0; h < heads; ++h) {
    __m512i from[C];
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) from[c] = _mm512_loadu_si512(both + h * d + column + 16 * c);
#pragma GCC unroll 4
    for (int k = 0; k < K; ++k)
#pragma GCC unroll 4
      for (int c = 0; c < C; ++c) sum[k][c] = add(sum[k][c], from[c], weights[k * L + h]);
  }
#pragma GCC unroll 4
  for (int k = 0; k < K; ++k)
#pragma GCC unroll 4
    for (int c = 0; c < C; ++c) _mm512_storeu_ps(to[k] + column + 16 * c, sum[k][c]);
}
template <int L, int C>
HP_INLINE void spread_columns(const uint32_t* weights, const uint32_t* both, int64_t count, int64_t d, int64_t column,
                              int64_t heads, float* const* to) {
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) spread_block<L, 4, C>(weights + i * L, both, d, heads, column, to + i);
  for (; i < count; ++i) spread_block<L, 1, C>(weights + i * L, both, d, heads, column, to + i);
}
template <int L>
HP_INLINE void spread(const uint32_t* weights, const uint32_t* both, int64_t count, int64_t d, int64_t heads, float* const* to) {
  int64_t column = 0;
  for (; column + 64 <= d; column += 64) spread_columns<L, 4>(weights, both, count, d, column, heads, to);
  for (; column < d; column += 16) spread_columns<L, 1>(weights, both, count, d, column, heads, to);
}

struct VectorProducts {
  HP_INLINE void begin(const Query<Bits>& query) { count_ = query.count; }
  HP_INLINE int64_t rows() const { return count_; }
  HP_INLINE int64_t row(int64_t key) const { return key; }
  template <int L>
  HP_INLINE void fill_gaps(float*, float) {}
  template <int L>
  HP_INLINE void dots(const Query<Bits>& query, const uint32_t* x, float* out) {
    attention::dots<L>(x, query.keys, query.count, query.d, out);
  }
  template <int L>
  HP_INLINE void mix(const Query<Bits>& query, uint32_t* w, int64_t heads, float* out) {
    attention::mix<L>(w, query.keys, query.count, query.d, heads, out);
  }
  template <int L>
  HP_INLINE void spread(const Query<Bits>& query, const uint32_t* weights, uint32_t* both, int64_t heads, float* const* to) {
    attention::spread<L>(weights, both, query.count, query.d, heads, to);
  }

 private:
  int64_t count_ = 0;
};

}  // namespace

void PairAttention::forward(const Query<Bits>& query, float* out) {
  VectorProducts products;
  forward_pairs(products, scratch_, query, out);
}
void PairAttention::backward(const Query<Bits>& query, const Bits* gradient, float* dq, float* const* dkeys, float* dsink) {
  VectorProducts products;
  backward_pairs(products, scratch_, query, gradient, dq, dkeys, dsink);
}
void PairAttention::add_attention(const Query<Bits>& query, float* sums) {
  VectorProducts products;
  add_pairs(products, scratch_, query, sums);
}
#pragma GCC pop_options

}  // namespace hyperparallel::kernels::attention
#else

namespace hyperparallel::kernels::attention {

bool PairAttention::takes(int64_t) {
  return false;
}
PairAttention::PairAttention(int64_t, int64_t, int64_t) : scratch_(0, 0, 0) {
  throw std::logic_error("PairAttention on a processor without products of BF16 pairs");
}
void PairAttention::forward(const Query<Bfloat16Bits>&, float*) {}
void PairAttention::backward(const Query<Bfloat16Bits>&, const Bfloat16Bits*, float*, float* const*, float*) {}
void PairAttention::add_attention(const Query<Bfloat16Bits>&, float*) {}

}  // namespace hyperparallel::kernels::attention
#endif
