// BF16 attention in pairs (pairs.h) but for its three products, which are told by `Products`: of the processor's vectors or of
// its tiles. Internal to pairs.cpp and amx.cpp, which include it where their instruction set is in force, and before it what it
// includes.
//
//   begin(query)                                 before the products of a query
//   rows(), row(i)                               rows of arrays over keys, and the one of a key; others are gaps
//   fill_gaps<L>(p, x)                           sets rows [rows, L] that are gaps
//   dots<L>(query, x, out)                       out [rows, L]: products of each key with L heads of x [d / 2, L], in pairs
//   mix<L>(query, w, heads, out)                 out [heads, d]: sums over keys of w [(rows + 1) / 2, L], pairs of rows
//   spread<L>(query, weights, both, heads, to)   to[i] += sums over heads of pairs weights [rows, L] . both [heads, d]
// There is room for up to kKeyUnit rows behind the last in `out`, `w` and `weights`, and for L heads in `both`.
#pragma once

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/attention/pairs.h"
#include "kernels/attention/softmax.h"
#include "kernels/gemm/transpose.h"

namespace hyperparallel::kernels::attention {
namespace {

// to [d / 2, L]: pairs of channels of the heads; nobody asks what is in the other lanes.
template <int L>
HP_INLINE void transpose_heads(const Bfloat16Bits* from, int64_t heads, int64_t d, uint32_t* to) {
  gemm::transpose_words(reinterpret_cast<const uint32_t*>(from), d / 2, heads, d / 2, to, L);
}

// Rounded to BF16, in the lower half.
HP_INLINE uint32_t half_of(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}

// to [(count + 1) / 2, L]: neighbouring keys as pairs; behind the last of an odd count is a zero.
template <int L>
HP_INLINE void pair_keys(float* w, int64_t count, uint32_t* to) {
  for (int l = 0; l < L; ++l) w[count * L + l] = 0;
  for (int64_t i = 0; i < count; i += 2)
    for (int l = 0; l < L; ++l) to[i / 2 * L + l] = half_of(w[i * L + l]) | half_of(w[(i + 1) * L + l]) << 16;
}

// A block of heads `first` .. of a query.
template <int L, class Products>
struct Block {
  Products& products;
  const Query<Bfloat16Bits>& query;
  int64_t first, heads;  // heads: that are there
  float sink[L];         // its logits, then its probabilities

  HP_INLINE Block(Products& with, const Query<Bfloat16Bits>& of, int64_t from)
      : products(with), query(of), first(from), heads(std::min<int64_t>(L, of.heads - from)) {
    for (int l = 0; l < L; ++l) sink[l] = l < heads ? of.sink[first + l] : 0.0f;
  }

  HP_INLINE void probabilities(uint32_t* q, float* p) {
    const float scale = scale_of<float>(query.d);
    transpose_heads<L>(query.q + first * query.d, heads, query.d, q);
    products.template dots<L>(query, q, p);
    round_logits<float, L>(p, products.rows(), scale);
    products.template fill_gaps<L>(p, -1e30f);
    softmax<float, L>(p, products.rows(), sink);
    products.template fill_gaps<L>(p, 0);
  }

  HP_INLINE void forward(PairScratch& s, float* out) {
    uint32_t* pairs = s.pairs.data();
    float* p = s.p.data();
    probabilities(s.q.data(), p);
    pair_keys<L>(p, products.rows(), pairs);
    products.template mix<L>(query, pairs, heads, out + first * query.d);
  }

  HP_INLINE void backward(const Bfloat16Bits* gradient, PairScratch& s, float* dq, float* const* dkeys, float* dsink) {
    uint32_t *q = s.q.data(), *g = s.g.data(), *both = s.both.data(), *pairs = s.pairs.data(), *weights = s.weights.data();
    float *p = s.p.data(), *dp = s.dp.data();
    const int64_t count = products.rows(), d = query.d;
    const float scale = scale_of<float>(d);
    const Bfloat16Bits *own_q = query.q + first * d, *own_g = gradient + first * d;
    float dot[L];
    probabilities(q, p);
    transpose_heads<L>(own_g, heads, d, g);
    products.template dots<L>(query, g, dp);
    softmax_backward<float, L>(p, count, scale, dp, dot);
    for (int64_t h = 0; h < heads; ++h) dsink[first + h] -= sink[h] * dot[h];
    pair_keys<L>(dp, count, pairs);
    products.template mix<L>(query, pairs, heads, dq + first * d);
    for (int64_t i = 0; i < count * L; ++i) weights[i] = half_of(dp[i]) | half_of(p[i]) << 16;
    gemm::interleave(reinterpret_cast<const uint16_t*>(own_q), reinterpret_cast<const uint16_t*>(own_g), heads * d, both);
    products.template spread<L>(query, weights, both, heads, dkeys);
  }
};

template <class Body>
HP_INLINE void with_lanes(int lanes, const Body& body) {
  if (lanes == 8) return body(std::integral_constant<int, 8>());
  body(std::integral_constant<int, 16>());
}

// What PairAttention and TileAttention do.
template <class Products>
HP_INLINE void forward_pairs(Products& products, PairScratch& s, const Query<Bfloat16Bits>& query, float* out) {
  products.begin(query);
  with_lanes(s.lanes, [&](auto lanes) __attribute__((always_inline)) {
    for (int64_t b = 0; b < s.blocks; ++b) Block<lanes(), Products>(products, query, b * lanes()).forward(s, out);
  });
}
template <class Products>
HP_INLINE void backward_pairs(Products& products, PairScratch& s, const Query<Bfloat16Bits>& query, const Bfloat16Bits* gradient,
                              float* dq, float* const* dkeys, float* dsink) {
  products.begin(query);
  with_lanes(s.lanes, [&](auto lanes) __attribute__((always_inline)) {
    for (int64_t b = 0; b < s.blocks; ++b)
      Block<lanes(), Products>(products, query, b * lanes()).backward(gradient, s, dq, dkeys, dsink);
  });
}
template <class Products>
HP_INLINE void add_pairs(Products& products, PairScratch& s, const Query<Bfloat16Bits>& query, float* sums) {
  products.begin(query);
  with_lanes(s.lanes, [&](auto lanes) __attribute__((always_inline)) {
    constexpr int L = lanes();
    for (int64_t b = 0; b < s.blocks; ++b) {
      Block<L, Products> block(products, query, b * L);
      block.probabilities(s.q.data(), s.p.data());
      for (int64_t i = 0; i < query.count; ++i)
        for (int64_t h = 0; h < block.heads; ++h) sums[i] += s.p[products.row(i) * L + h];
    }
  });
}

}  // namespace
}  // namespace hyperparallel::kernels::attention
