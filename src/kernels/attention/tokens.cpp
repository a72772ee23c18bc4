#include "kernels/attention/tokens.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/vectorise.h"
#include "kernels/attention/softmax.h"
#include "kernels/vectors.h"

namespace hyperparallel::kernels::attention {
namespace {

// to [d, L] = from [heads, d] * scale for heads first .. first + L - 1; 0 for those that are not there.
template <class T, int L>
HP_INLINE void transpose_heads(const T* from, int64_t heads, int64_t first, int64_t d, T scale, T* to) {
  for (int l = 0; l < L; ++l) {
    if (first + l < heads) {
      const T* row = from + (first + l) * d;
      for (int64_t j = 0; j < d; ++j) to[j * L + l] = row[j] * scale;
    } else {
      for (int64_t j = 0; j < d; ++j) to[j * L + l] = 0;
    }
  }
}

// out [count, L]: products of each key with the L columns of x [d, L].
template <class T, int L>
HP_INLINE void dots(const T* x, const T* const* keys, int64_t count, int64_t d, T* out) {
  constexpr int kKeys = 8;
  int64_t i = 0;
  for (; i + kKeys <= count; i += kKeys) {
    const T *k0 = keys[i], *k1 = keys[i + 1], *k2 = keys[i + 2], *k3 = keys[i + 3], *k4 = keys[i + 4], *k5 = keys[i + 5],
            *k6 = keys[i + 6], *k7 = keys[i + 7];
    Vec<T, L> a0{}, a1{}, a2{}, a3{}, a4{}, a5{}, a6{}, a7{};
    for (int64_t j = 0; j < d; ++j) {
      const Vec<T, L> v = load<T, L>(x + j * L);
      a0 += v * k0[j], a1 += v * k1[j], a2 += v * k2[j], a3 += v * k3[j];
      a4 += v * k4[j], a5 += v * k5[j], a6 += v * k6[j], a7 += v * k7[j];
    }
    T* to = out + i * L;
    store<T, L>(to, a0), store<T, L>(to + L, a1), store<T, L>(to + 2 * L, a2), store<T, L>(to + 3 * L, a3);
    store<T, L>(to + 4 * L, a4), store<T, L>(to + 5 * L, a5), store<T, L>(to + 6 * L, a6), store<T, L>(to + 7 * L, a7);
  }
  for (; i < count; ++i) {
    Vec<T, L> a{};
    for (int64_t j = 0; j < d; ++j) a += load<T, L>(x + j * L) * keys[i][j];
    store<T, L>(out + i * L, a);
  }
}

// out[h][..] = sum over keys of w[key, h] * key, of `width` (a constant) columns from `column`, for H heads from `first`.
template <class T, int L, int W, int H>
HP_INLINE void mix_block(const T* w, const T* const* keys, int64_t count, int64_t d, int64_t column, int64_t first, T* out) {
  Vec<T, W> acc[H][2] = {};
  for (int64_t i = 0; i < count; ++i) {
    const T* key = keys[i] + column;
    const Vec<T, W> k0 = load<T, W>(key), k1 = load<T, W>(key + W);
    const T* own = w + i * L + first;
    for (int h = 0; h < H; ++h) {
      acc[h][0] += k0 * own[h];
      acc[h][1] += k1 * own[h];
    }
  }
  for (int h = 0; h < H; ++h) {
    store<T, W>(out + h * d + column, acc[h][0]);
    store<T, W>(out + h * d + column + W, acc[h][1]);
  }
}
template <class T, int L, int W>
HP_INLINE void mix_columns(const T* w, const T* const* keys, int64_t count, int64_t d, int64_t column, int64_t heads, T* out) {
  int64_t h = 0;
  for (; h + 4 <= heads; h += 4) mix_block<T, L, W, 4>(w, keys, count, d, column, h, out + h * d);
  for (; h < heads; ++h) mix_block<T, L, W, 1>(w, keys, count, d, column, h, out + h * d);
}

// out [heads, d] = w [count, L]^T keys [count, d], of the block's `heads`.
template <class T, int L>
HP_INLINE void mix(const T* w, const T* const* keys, int64_t count, int64_t d, int64_t heads, T* out) {
  int64_t column = 0;
  for (; column + 32 <= d; column += 32) mix_columns<T, L, 16>(w, keys, count, d, column, heads, out);
  for (; column + 8 <= d; column += 8) mix_columns<T, L, 4>(w, keys, count, d, column, heads, out);
  for (; column < d; ++column) {
    for (int64_t h = 0; h < heads; ++h) {
      T sum = 0;
      for (int64_t i = 0; i < count; ++i) sum += w[i * L + h] * keys[i][column];
      out[h * d + column] = sum;
    }
  }
}

// to[i] += sum over heads of a[i, h] * x[h] + b[i, h] * y[h]; x, y [heads, d]. For K keys, which are different ones.
template <class T, int L, int W, int K>
HP_INLINE void spread_block(const T* a, const T* x, const T* b, const T* y, int64_t d, int64_t heads, int64_t column,
                            T* const* to) {
  Vec<T, W> sum[K][2];
#pragma GCC unroll 4
  for (int k = 0; k < K; ++k) sum[k][0] = load<T, W>(to[k] + column), sum[k][1] = load<T, W>(to[k] + column + W);
  for (int64_t h = 0; h < heads; ++h) {
    const T *xs = x + h * d + column, *ys = y + h * d + column;
    const Vec<T, W> x0 = load<T, W>(xs), x1 = load<T, W>(xs + W), y0 = load<T, W>(ys), y1 = load<T, W>(ys + W);
#pragma GCC unroll 4
    for (int k = 0; k < K; ++k) {
      const T wa = a[k * L + h], wb = b[k * L + h];
      sum[k][0] += x0 * wa, sum[k][1] += x1 * wa;
      sum[k][0] += y0 * wb, sum[k][1] += y1 * wb;
    }
  }
#pragma GCC unroll 4
  for (int k = 0; k < K; ++k) store<T, W>(to[k] + column, sum[k][0]), store<T, W>(to[k] + column + W, sum[k][1]);
}
template <class T, int L, int W>
HP_INLINE void spread_columns(const T* a, const T* x, const T* b, const T* y, int64_t count, int64_t d, int64_t column,
                              int64_t heads, T* const* to) {
  int64_t i = 0;
  for (; i + 4 <= count; i += 4) spread_block<T, L, W, 4>(a + i * L, x, b + i * L, y, d, heads, column, to + i);
  for (; i < count; ++i) spread_block<T, L, W, 1>(a + i * L, x, b + i * L, y, d, heads, column, to + i);
}
template <class T, int L>
HP_INLINE void spread(const T* a, const T* x, const T* b, const T* y, int64_t count, int64_t d, int64_t heads, T* const* to) {
  int64_t column = 0;
  for (; column + 32 <= d; column += 32) spread_columns<T, L, 16>(a, x, b, y, count, d, column, heads, to);
  for (; column + 8 <= d; column += 8) spread_columns<T, L, 4>(a, x, b, y, count, d, column, heads, to);
  for (; column < d; ++column) {
    for (int64_t i = 0; i < count; ++i) {
      T sum = to[i][column];
      for (int64_t h = 0; h < heads; ++h) sum += a[i * L + h] * x[h * d + column] + b[i * L + h] * y[h * d + column];
      to[i][column] = sum;
    }
  }
}

// A block of heads `first` .. of a query.
template <class T, int L>
struct Block {
  const Query<T>& query;
  int64_t first, heads;  // heads: that are there
  T sink[L];             // its logits, then its probabilities

  HP_INLINE Block(const Query<T>& of, int64_t from) : query(of), first(from), heads(std::min<int64_t>(L, of.heads - from)) {
    for (int l = 0; l < L; ++l) sink[l] = l < heads ? of.sink[first + l] : T(0);
  }

  HP_INLINE void probabilities(T* q, T* p) {
    const T scale = scale_of<T>(query.d);
    transpose_heads<T, L>(query.q, query.heads, first, query.d, query.rounds ? T(1) : scale, q);
    dots<T, L>(q, query.keys, query.count, query.d, p);
    if (query.rounds) round_logits<T, L>(p, query.count, scale);
    softmax<T, L>(p, query.count, sink);
  }

  HP_INLINE void forward(T* q, T* p, T* out) {
    probabilities(q, p);
    if (query.rounds) {
      for (int64_t i = 0; i < query.count * L; ++i) p[i] = rounded(p[i]);
    }
    mix<T, L>(p, query.keys, query.count, query.d, heads, out + first * query.d);
  }

  HP_INLINE void backward(const T* gradient, T* q, T* g, T* p, T* dp, T* dq, T* const* dkeys, T* dsink) {
    const int64_t count = query.count, d = query.d;
    const T scale = scale_of<T>(d);
    T dot[L];
    probabilities(q, p);
    transpose_heads<T, L>(gradient, query.heads, first, d, T(1), g);
    dots<T, L>(g, query.keys, count, d, dp);
    softmax_backward<T, L>(p, count, scale, dp, dot);
    for (int64_t h = 0; h < heads; ++h) dsink[first + h] -= sink[h] * dot[h];
    mix<T, L>(dp, query.keys, count, d, heads, dq + first * d);
    spread<T, L>(dp, query.q + first * d, p, gradient + first * d, count, d, heads, dkeys);
  }
};

}  // namespace

template <class T>
TokenAttention<T>::TokenAttention(int64_t heads, int64_t d, int64_t most_keys)
    : lanes_(heads <= 4   ? 4
             : heads <= 8 ? 8
                          : 16),
      blocks_((heads + lanes_ - 1) / lanes_),
      q_(d * lanes_),
      g_(d * lanes_),
      p_(most_keys * lanes_),
      dp_(most_keys * lanes_) {}

namespace {

template <class Body>
HP_INLINE void with_lanes(int lanes, const Body& body) {
  if (lanes == 4) return body(std::integral_constant<int, 4>());
  if (lanes == 8) return body(std::integral_constant<int, 8>());
  body(std::integral_constant<int, 16>());
}

}  // namespace

template <class T>
void TokenAttention<T>::forward(const Query<T>& query, T* out) {
  vectorise_products([&]() __attribute__((always_inline)) {
    with_lanes(lanes_, [&](auto lanes) __attribute__((always_inline)) {
      for (int64_t b = 0; b < blocks_; ++b) Block<T, lanes()>(query, b * lanes()).forward(q_.data(), p_.data(), out);
    });
  });
}

template <class T>
void TokenAttention<T>::backward(const Query<T>& query, const T* gradient, T* dq, T* const* dkeys, T* dsink) {
  vectorise_products([&]() __attribute__((always_inline)) {
    with_lanes(lanes_, [&](auto lanes) __attribute__((always_inline)) {
      for (int64_t b = 0; b < blocks_; ++b) {
        Block<T, lanes()>(query, b * lanes()).backward(gradient, q_.data(), g_.data(), p_.data(), dp_.data(), dq, dkeys, dsink);
      }
    });
  });
}

template <class T>
void TokenAttention<T>::add_attention(const Query<T>& query, T* sums) {
  vectorise_products([&]() __attribute__((always_inline)) {
    with_lanes(lanes_, [&](auto lanes) __attribute__((always_inline)) {
      constexpr int L = lanes();
      for (int64_t b = 0; b < blocks_; ++b) {
        Block<T, L> block(query, b * L);
        block.probabilities(q_.data(), p_.data());
        for (int64_t i = 0; i < query.count; ++i)
          for (int64_t h = 0; h < block.heads; ++h) sums[i] += p_[i * L + h];
      }
    });
  });
}

template class TokenAttention<float>;
template class TokenAttention<double>;

}  // namespace hyperparallel::kernels::attention
