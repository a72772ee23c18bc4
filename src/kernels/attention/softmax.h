// What the inner loops of sparse attention share: softmax over keys with a sink, L heads side by side.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/vector_math.h"
#include "kernels/vectors.h"

namespace hyperparallel::kernels::attention {

// p [count, L] from logits to probabilities, and that of the sink [L]. Normalised by a sum of their own, not by its logarithm,
// whose rounding would make all of them wrong alike.
template <class T, int L>
HP_INLINE void softmax(T* p, int64_t count, T* sink) {
  constexpr int W = 16;  // lanes: of one key, or of several, whose parts come together at the end
  static_assert(W % L == 0);
  const int64_t size = count * L, whole = size / W * W;
  T most[W], sum[W];
  for (int l = 0; l < W; ++l) most[l] = sink[l % L];
  Vec<T, W> top = load<T, W>(most);
  for (int64_t i = 0; i < whole; i += W) {
    const Vec<T, W> x = load<T, W>(p + i);
    top = x > top ? x : top;
  }
  store<T, W>(most, top);
  for (int64_t i = whole; i < size; ++i) most[i - whole] = p[i] > most[i - whole] ? p[i] : most[i - whole];
  for (int l = L; l < W; ++l) most[l % L] = most[l] > most[l % L] ? most[l] : most[l % L];
  for (int l = L; l < W; ++l) most[l] = most[l % L];
  for (int l = 0; l < W; ++l) sum[l] = 0;
  for (int64_t i = 0; i < whole; i += W)
    for (int l = 0; l < W; ++l) sum[l] += p[i + l] = vector_exp(p[i + l] - most[l]);
  for (int64_t i = whole; i < size; ++i) sum[i - whole] += p[i] = vector_exp(p[i] - most[i - whole]);
  for (int l = L; l < W; ++l) sum[l % L] += sum[l];
  for (int l = 0; l < L; ++l) sum[l] = 1 / (sum[l] + (sink[l] = vector_exp(sink[l] - most[l])));
  for (int l = 0; l < L; ++l) sink[l] *= sum[l];
  for (int l = L; l < W; ++l) sum[l] = sum[l % L];
  for (int64_t i = 0; i < whole; i += W)
    for (int l = 0; l < W; ++l) p[i + l] *= sum[l];
  for (int64_t i = whole; i < size; ++i) p[i] *= sum[i - whole];
}

// To BF16, to the nearest, ties to even; not for NaN. FP64 is never rounded so.
HP_INLINE float rounded(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  return std::bit_cast<float>((bits + 0x7fff + ((bits >> 16) & 1)) & 0xffff0000u);
}
HP_INLINE double rounded(double x) {
  return x;
}

// Logits [count, L] of BF16 products: these and the scaled ones are rounded.
template <class T, int L>
HP_INLINE void round_logits(T* logits, int64_t count, T scale) {
  for (int64_t i = 0; i < count * L; ++i) logits[i] = rounded(rounded(logits[i]) * scale);
}

// dp [count, L] from the gradients of probabilities p to those of the products behind them; dot [L]: the sums over keys of p dp.
template <class T, int L>
HP_INLINE void softmax_backward(const T* p, int64_t count, T scale, T* dp, T* dot) {
  constexpr int W = 16;  // as in softmax
  const int64_t size = count * L, whole = size / W * W;
  T sum[W];
  for (int l = 0; l < W; ++l) sum[l] = 0;
  for (int64_t i = 0; i < whole; i += W)
    for (int l = 0; l < W; ++l) sum[l] += p[i + l] * dp[i + l];
  for (int64_t i = whole; i < size; ++i) sum[i - whole] += p[i] * dp[i];
  for (int l = L; l < W; ++l) sum[l % L] += sum[l];
  for (int l = 0; l < L; ++l) dot[l] = sum[l];
  for (int l = L; l < W; ++l) sum[l] = sum[l % L];
  for (int64_t i = 0; i < whole; i += W)
    for (int l = 0; l < W; ++l) dp[i + l] = p[i + l] * (dp[i + l] - sum[l]) * scale;
  for (int64_t i = whole; i < size; ++i) dp[i] = p[i] * (dp[i] - sum[i - whole]) * scale;
}

template <class T>
HP_INLINE T scale_of(int64_t d) {
  return T(1) / std::sqrt(static_cast<T>(d));
}

}  // namespace hyperparallel::kernels::attention
