#include "kernels/mhc/site.h"

#include <algorithm>
#include <cmath>

#include "base/vectorise.h"
#include "kernels/storage.h"
#include "kernels/vectors.h"

namespace hyperparallel::kernels::mhc {
namespace {

constexpr int kW = 16;  // numbers of a vector

template <class T>
HP_INLINE T sum_of(Vec<T, kW> v) {
  const Vec<T, 8> a =
      __builtin_shufflevector(v, v, 0, 1, 2, 3, 4, 5, 6, 7) + __builtin_shufflevector(v, v, 8, 9, 10, 11, 12, 13, 14, 15);
  const Vec<T, 4> b = __builtin_shufflevector(a, a, 0, 1, 2, 3) + __builtin_shufflevector(a, a, 4, 5, 6, 7);
  const Vec<T, 2> c = __builtin_shufflevector(b, b, 0, 1) + __builtin_shufflevector(b, b, 2, 3);
  return c[0] + c[1];
}

// By four sums, which hide the latency of one.
template <class T>
HP_INLINE T dot(const T* a, const T* b, int64_t size) {
  Vec<T, kW> sum[4] = {};
  int64_t i = 0;
  for (; i + 4 * kW <= size; i += 4 * kW) {
#pragma GCC unroll 4
    for (int s = 0; s < 4; ++s) sum[s] += load<T, kW>(a + i + s * kW) * load<T, kW>(b + i + s * kW);
  }
  for (; i < size; i += kW) sum[0] += load<T, kW>(a + i) * load<T, kW>(b + i);
  return sum_of<T>((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

// out[t, o] = x[t] . fn[o] for Tokens x Outputs of them.
template <class T, int Tokens, int Outputs>
HP_INLINE void project_block(const T* x, const T* fn, int64_t width, int64_t stride, T* out, int64_t outputs) {
  Vec<T, kW> sum[Tokens][Outputs] = {};
  for (int64_t i = 0; i < width; i += kW) {
    Vec<T, kW> from[Tokens];
#pragma GCC unroll 4
    for (int t = 0; t < Tokens; ++t) from[t] = load<T, kW>(x + t * stride + i);
#pragma GCC unroll 6
    for (int o = 0; o < Outputs; ++o) {
      const Vec<T, kW> f = load<T, kW>(fn + o * stride + i);
#pragma GCC unroll 4
      for (int t = 0; t < Tokens; ++t) sum[t][o] += from[t] * f;
    }
  }
  for (int t = 0; t < Tokens; ++t)
    for (int o = 0; o < Outputs; ++o) out[t * outputs + o] = sum_of<T>(sum[t][o]);
}
template <class T, int Tokens>
HP_INLINE void project_tokens(const T* x, const T* fn, int64_t width, int64_t stride, T* out, int64_t outputs) {
  int64_t o = 0;
  for (; o + 6 <= outputs; o += 6) project_block<T, Tokens, 6>(x, fn + o * stride, width, stride, out + o, outputs);
  for (; o + 2 <= outputs; o += 2) project_block<T, Tokens, 2>(x, fn + o * stride, width, stride, out + o, outputs);
  for (; o < outputs; ++o) project_block<T, Tokens, 1>(x, fn + o * stride, width, stride, out + o, outputs);
}
template <class T>
HP_INLINE void project(int64_t tokens, const T* x, const T* fn, int64_t width, int64_t stride, T* out, int64_t outputs) {
  int64_t t = 0;
  for (; t + 4 <= tokens; t += 4) project_tokens<T, 4>(x + t * stride, fn, width, stride, out + t * outputs, outputs);
  for (; t < tokens; ++t) project_tokens<T, 1>(x + t * stride, fn, width, stride, out + t * outputs, outputs);
}

// g[t] += sum over these outputs of dprojected[t, o] fn[o].
template <class T, int Outputs>
HP_INLINE void send_back_block(int64_t tokens, const T* dprojected, int64_t outputs, const T* fn, int64_t columns, int64_t stride,
                               T* g) {
  for (int64_t i = 0; i < columns; i += kW) {
    Vec<T, kW> f[Outputs];
#pragma GCC unroll 8
    for (int o = 0; o < Outputs; ++o) f[o] = load<T, kW>(fn + o * stride + i);
    for (int64_t t = 0; t < tokens; ++t) {
      Vec<T, kW> sum = load<T, kW>(g + t * stride + i);
#pragma GCC unroll 8
      for (int o = 0; o < Outputs; ++o) sum += f[o] * dprojected[t * outputs + o];
      store<T, kW>(g + t * stride + i, sum);
    }
  }
}
// dfn[o] += sum over tokens of dprojected[t, o] x[t] for these outputs.
template <class T, int Outputs>
HP_INLINE void add_outer_block(int64_t tokens, const T* dprojected, int64_t outputs, const T* x, int64_t columns, int64_t stride,
                               T* dfn) {
  for (int64_t i = 0; i < columns; i += kW) {
    Vec<T, kW> sum[Outputs];
#pragma GCC unroll 8
    for (int o = 0; o < Outputs; ++o) sum[o] = load<T, kW>(dfn + o * stride + i);
    for (int64_t t = 0; t < tokens; ++t) {
      const Vec<T, kW> from = load<T, kW>(x + t * stride + i);
#pragma GCC unroll 8
      for (int o = 0; o < Outputs; ++o) sum[o] += from * dprojected[t * outputs + o];
    }
#pragma GCC unroll 8
    for (int o = 0; o < Outputs; ++o) store<T, kW>(dfn + o * stride + i, sum[o]);
  }
}
// By so many columns that rows of tokens and of both matrices stay in the first cache.
template <class T>
HP_INLINE void project_backward(int64_t tokens, const T* dprojected, int64_t outputs, const T* fn, const T* x, int64_t width,
                                int64_t stride, T* g, T* dfn) {
  constexpr int64_t kColumns = 64;
  for (int64_t c = 0; c < width; c += kColumns) {
    const int64_t columns = std::min(kColumns, width - c);
    int64_t o = 0;
    for (; o + 8 <= outputs; o += 8) {
      send_back_block<T, 8>(tokens, dprojected + o, outputs, fn + o * stride + c, columns, stride, g + c);
      add_outer_block<T, 8>(tokens, dprojected + o, outputs, x + c, columns, stride, dfn + o * stride + c);
    }
    for (; o < outputs; ++o) {
      send_back_block<T, 1>(tokens, dprojected + o, outputs, fn + o * stride + c, columns, stride, g + c);
      add_outer_block<T, 1>(tokens, dprojected + o, outputs, x + c, columns, stride, dfn + o * stride + c);
    }
  }
}

// out = sum over k of weights[k] rows[k].
template <class T>
HP_INLINE void weighted_sum(int64_t n, const T* rows, const T* weights, int64_t stride, int64_t size, T* out) {
  for (int64_t i = 0; i < size; i += kW) {
    Vec<T, kW> sum = load<T, kW>(rows + i) * weights[0];
    for (int64_t k = 1; k < n; ++k) sum += load<T, kW>(rows + k * size + i) * weights[k * stride];
    store<T, kW>(out + i, sum);
  }
}

// A token's new streams (and what is stored of them) from its N old ones, all in one pass.
template <class S, class T, int N>
HP_INLINE void expand_token(const S* y, const S* old, int64_t d, const T* post, const T* comb, S* stored, T* out) {
  for (int64_t i = 0; i < d; i += kW) {
    Vec<T, kW> from[N];
    const Vec<T, kW> added = load_wide<T>(y + i);
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) from[j] = load_wide<T>(old + j * d + i);
#pragma GCC unroll 4
    for (int k = 0; k < N; ++k) {
      Vec<T, kW> sum = from[0] * comb[k];
#pragma GCC unroll 4
      for (int j = 1; j < N; ++j) sum += from[j] * comb[j * N + k];
      store_narrow<S, T>(stored + k * d + i, sum + added * post[k]);
      store<T, kW>(out + k * d + i, load_wide<T>(stored + k * d + i));
    }
  }
}
// And what comes back from their gradient g [N, d].
template <class S, class T, int N>
HP_INLINE void expand_token_backward(const S* y, const S* old, int64_t d, const T* post, const T* comb, const T* g, S* dy,
                                     S* dold, T* dpost, T* dcomb) {
  Vec<T, kW> along_post[N] = {}, along_comb[N][N] = {};
  for (int64_t i = 0; i < d; i += kW) {
    Vec<T, kW> gradient[N];
#pragma GCC unroll 4
    for (int k = 0; k < N; ++k) gradient[k] = load<T, kW>(g + k * d + i);
    const Vec<T, kW> added = load_wide<T>(y + i);
    Vec<T, kW> sum = gradient[0] * post[0];
#pragma GCC unroll 4
    for (int k = 1; k < N; ++k) sum += gradient[k] * post[k];
    store_narrow<S, T>(dy + i, sum);
#pragma GCC unroll 4
    for (int k = 0; k < N; ++k) along_post[k] += gradient[k] * added;
#pragma GCC unroll 4
    for (int j = 0; j < N; ++j) {
      const Vec<T, kW> from = load_wide<T>(old + j * d + i);
      sum = gradient[0] * comb[j * N];
#pragma GCC unroll 4
      for (int k = 1; k < N; ++k) sum += gradient[k] * comb[j * N + k];
      store_narrow<S, T>(dold + j * d + i, sum);
#pragma GCC unroll 4
      for (int k = 0; k < N; ++k) along_comb[j][k] += gradient[k] * from;
    }
  }
  for (int k = 0; k < N; ++k) dpost[k] = sum_of<T>(along_post[k]);
  for (int j = 0; j < N; ++j)
    for (int k = 0; k < N; ++k) dcomb[j * N + k] = sum_of<T>(along_comb[j][k]);
}

}  // namespace

int64_t SiteShape::tokens() const {
  constexpr int64_t kMost = 16, kNumbers = 1 << 16;  // of streams on the chip
  return std::clamp<int64_t>(kNumbers / padded_width(), 1, kMost);
}

template <class S, class T>
SiteTile<S, T>::SiteTile(const SiteShape& shape)
    : shape_(shape),
      x_(shape.tokens() * shape.stride()),
      g_(shape.tokens() * shape.stride()),
      y_(shape.padded()),
      z_(shape.padded()),
      old_((shape.n + 1) * shape.padded()),
      dprojected_(shape.tokens() * shape.mix().outputs()),
      dr_(shape.tokens()) {}

template <class S, class T>
void SiteTile<S, T>::read(int64_t tokens, const S* streams) {
  vectorise_products([&]() __attribute__((always_inline)) {
    over_rows(tokens, [&](int64_t t, int64_t k) __attribute__((always_inline)) {
      widen(streams + (t * shape_.n + k) * shape_.d, shape_.d, row(x_, t, k));
    });
  });
}

template <class S, class T>
void SiteTile<S, T>::read_gradient(int64_t tokens, const S* dstreams) {
  vectorise_products([&]() __attribute__((always_inline)) {
    over_rows(tokens, [&](int64_t t, int64_t k) __attribute__((always_inline)) {
      widen(dstreams + (t * shape_.n + k) * shape_.d, shape_.d, row(g_, t, k));
    });
  });
}

template <class S, class T>
void SiteTile<S, T>::write_gradient(int64_t tokens, S* dstreams) {
  vectorise_products([&]() __attribute__((always_inline)) {
    over_rows(tokens, [&](int64_t t, int64_t k) __attribute__((always_inline)) {
      narrow(row(g_, t, k), shape_.d, dstreams + (t * shape_.n + k) * shape_.d);
    });
  });
}

template <class S, class T>
void SiteTile<S, T>::expand(int64_t tokens, const ExpandInput<S, T>& in, S* streams) {
  const int64_t n = shape_.n, d = shape_.d, padded = shape_.padded();
  vectorise_products([&]() __attribute__((always_inline)) {
    for (int64_t t = 0; t < tokens; ++t) {
      if (n == 4 && d == padded) {
        expand_token<S, T, 4>(in.y + t * d, in.streams + t * n * d, d, in.post + t * n, in.comb + t * n * n, streams + t * n * d,
                              row(x_, t));
        continue;
      }
      widen(in.y + t * d, d, y_.data());
      for (int64_t j = 0; j < n; ++j) widen(in.streams + (t * n + j) * d, d, old_.data() + j * padded);
      for (int64_t k = 0; k < n; ++k) {
        const T post = in.post[t * n + k];
        const T* comb = in.comb + t * n * n + k;
        T* out = row(x_, t, k);
        weighted_sum<T>(n, old_.data(), comb, n, padded, out);
        for (int64_t i = 0; i < padded; i += kW) store<T, kW>(out + i, load<T, kW>(out + i) + load<T, kW>(y_.data() + i) * post);
        narrow(out, d, streams + (t * n + k) * d);
        if constexpr (!std::is_same_v<S, T>) widen(streams + (t * n + k) * d, d, out);
      }
    }
  });
}

template <class S, class T>
void SiteTile<S, T>::mix(int64_t tokens, const MixWeights<T>& parameters, const MixRows<T>& rows, S* x) {
  const int64_t n = shape_.n, d = shape_.d, padded = shape_.padded(), width = shape_.padded_width();
  vectorise_products([&]() __attribute__((always_inline)) {
    for (int64_t t = 0; t < tokens; ++t) {
      const T* streams = row(x_, t);
      rows.r[t] = T(1) / std::sqrt(dot<T>(streams, streams, width) / T(n * d) + T(shape_.rms_eps));
      weighted_sum<T>(n, streams, rows.given + t * n, 1, padded, y_.data());
      round_to<S>(y_.data(), padded);
      const T inverse = T(1) / std::sqrt(dot<T>(y_.data(), y_.data(), padded) / T(d) + T(shape_.rms_eps));
      for (int64_t i = 0; i < padded; i += kW) store<T, kW>(y_.data() + i, load<T, kW>(y_.data() + i) * inverse);
      round_to<S>(y_.data(), padded);
      for (int64_t i = 0; i < padded; i += kW)
        store<T, kW>(y_.data() + i, load<T, kW>(y_.data() + i) * load<T, kW>(parameters.gain + i));
      narrow(y_.data(), d, x + t * d);
    }
    project<T>(tokens, x_.data(), parameters.fn, width, shape_.stride(), rows.projected, shape_.mix().outputs());
  });
  mix_forward<T>(shape_.mix(), tokens, {rows.projected, rows.r, parameters.scale, parameters.base}, rows.pre, rows.post,
                 rows.comb);
}

template <class S, class T>
void SiteTile<S, T>::mix_backward(int64_t tokens, const MixWeights<T>& parameters, const MixRows<T>& rows,
                                  const MixGradients<T>& gradients, const S* dx, const MixSums<T>& sums) {
  const int64_t n = shape_.n, d = shape_.d, padded = shape_.padded();
  mhc::mix_backward<T>(shape_.mix(), tokens, {rows.projected, rows.r, parameters.scale, parameters.base}, gradients.dpre,
                       gradients.dpost, gradients.dcomb, dprojected_.data(), dr_.data(), sums.dscales);
  vectorise_products([&]() __attribute__((always_inline)) {
    T *u = y_.data(), *du = z_.data();
    for (int64_t t = 0; t < tokens; ++t) {
      const T *streams = row(x_, t), *given = rows.given + t * n;
      T* g = row(g_, t);
      weighted_sum<T>(n, streams, given, 1, padded, u);
      round_to<S>(u, padded);
      const T inverse = T(1) / std::sqrt(dot<T>(u, u, padded) / T(d) + T(shape_.rms_eps));
      widen(dx + t * d, d, du);
      Vec<T, kW> along = {};
      for (int64_t i = 0; i < padded; i += kW) {
        const Vec<T, kW> z = load<T, kW>(u + i) * inverse, dy = load<T, kW>(du + i);
        store<T, kW>(sums.dgain + i, load<T, kW>(sums.dgain + i) + dy * z);
        const Vec<T, kW> dz = dy * load<T, kW>(parameters.gain + i);
        store<T, kW>(du + i, dz);
        along += dz * z;
      }
      const T mean = sum_of<T>(along) / T(d) * inverse;
      for (int64_t i = 0; i < padded; i += kW) store<T, kW>(du + i, (load<T, kW>(du + i) - load<T, kW>(u + i) * mean) * inverse);
      // dr r^3 / width: what the factor r sends back to the streams.
      const T factor = dr_[t] * rows.r[t] * rows.r[t] * rows.r[t] / T(n * d);
      for (int64_t k = 0; k < n; ++k) {
        gradients.dgiven[t * n + k] = dot<T>(du, streams + k * padded, padded);
        for (int64_t i = 0; i < padded; i += kW) {
          T* to = g + k * padded + i;
          store<T, kW>(to, load<T, kW>(to) + load<T, kW>(du + i) * given[k] - load<T, kW>(streams + k * padded + i) * factor);
        }
      }
    }
    project_backward<T>(tokens, dprojected_.data(), shape_.mix().outputs(), parameters.fn, x_.data(), shape_.padded_width(),
                        shape_.stride(), g_.data(), sums.dfn);
  });
}

template <class S, class T>
void SiteTile<S, T>::expand_backward(int64_t tokens, const ExpandInput<S, T>& in, S* dy, S* dstreams, T* dpost, T* dcomb) {
  const int64_t n = shape_.n, d = shape_.d, padded = shape_.padded();
  vectorise_products([&]() __attribute__((always_inline)) {
    for (int64_t t = 0; t < tokens; ++t) {
      const T* g = row(g_, t);
      if (n == 4 && d == padded) {
        expand_token_backward<S, T, 4>(in.y + t * d, in.streams + t * n * d, d, in.post + t * n, in.comb + t * n * n, g,
                                       dy + t * d, dstreams + t * n * d, dpost + t * n, dcomb + t * n * n);
        continue;
      }
      weighted_sum<T>(n, g, in.post + t * n, 1, padded, y_.data());
      narrow(y_.data(), d, dy + t * d);
      widen(in.y + t * d, d, y_.data());
      for (int64_t k = 0; k < n; ++k) dpost[t * n + k] = dot<T>(g + k * padded, y_.data(), padded);
      for (int64_t j = 0; j < n; ++j) {
        T* old = old_.data();
        widen(in.streams + (t * n + j) * d, d, old);
        for (int64_t k = 0; k < n; ++k) dcomb[(t * n + j) * n + k] = dot<T>(g + k * padded, old, padded);
        weighted_sum<T>(n, g, in.comb + (t * n + j) * n, 1, padded, old);
        narrow(old, d, dstreams + (t * n + j) * d);
      }
    }
  });
}

template class SiteTile<float, float>;
template class SiteTile<double, double>;
template class SiteTile<Bfloat16Bits, float>;

}  // namespace hyperparallel::kernels::mhc
