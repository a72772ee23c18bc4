#include "kernels/engram/rows.h"

#include <cmath>
#include <vector>

#include "base/vectorise.h"
#include "kernels/lanes.h"
#include "kernels/storage.h"

namespace hyperparallel::kernels::engram {
namespace {

constexpr double kFloor = 1e-6;  // of |dot|

// x gain key, x^2 and key^2, summed over d.
template <class S, class T>
HP_INLINE void sum_up(int64_t d, const S* x, const S* key, const T* gain, T& dot, T& squares, T& key_squares) {
  T dots[kLanes] = {}, own[kLanes] = {}, keys[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= d; i += kLanes) {
    for (int l = 0; l < kLanes; ++l) {
      const T a = widened(x[i + l]), b = widened(key[i + l]);
      dots[l] += a * gain[i + l] * b, own[l] += a * a, keys[l] += b * b;
    }
  }
  for (int l = 0; i < d; ++i, ++l) {
    const T a = widened(x[i]), b = widened(key[i]);
    dots[l] += a * gain[i] * b, own[l] += a * a, keys[l] += b * b;
  }
  dot = folded(dots), squares = folded(own), key_squares = folded(keys);
}

}  // namespace

template <class S, class T>
void forward(int64_t tokens, int64_t n, int64_t d, double eps, const S* streams, const S* kv, const T* gain, const bool* closed,
             S* out, Sums<T>* sums) {
  const T scale = T(1) / std::sqrt(T(d));
  vectorise([&]() __attribute__((always_inline)) {
    for (int64_t t = 0; t < tokens; ++t) {
      const S *keys = kv + t * (n + 1) * d, *value = keys + n * d;
      for (int64_t k = 0; k < n; ++k) {
        const S* x = streams + (t * n + k) * d;
        S* to = out + (t * n + k) * d;
        T dot, squares, key_squares;
        sum_up(d, x, keys + k * d, gain + k * d, dot, squares, key_squares);
        const T x_factor = T(1) / std::sqrt(squares / T(d) + T(eps)), key_factor = T(1) / std::sqrt(key_squares / T(d) + T(eps));
        dot *= x_factor * key_factor * scale;
        const T size = std::abs(dot), root = std::copysign(std::sqrt(size < T(kFloor) ? T(kFloor) : size), dot);
        const T gate = closed[t] ? T(0) : T(1) / (T(1) + std::exp(-root));
        sums[t * n + k] = {dot, x_factor, key_factor, gate};
#pragma GCC ivdep
        for (int64_t i = 0; i < d; ++i) to[i] = narrowed_to<S>(widened(x[i]) + gate * widened(value[i]));
      }
    }
  });
}

template <class S, class T>
void backward(int64_t tokens, int64_t n, int64_t d, const S* streams, const S* kv, const T* gain, const bool* closed,
              const Sums<T>* sums, const S* dout, S* dstreams, S* dkv, T* dgain) {
  const T scale = T(1) / std::sqrt(T(d));
  std::vector<T> value_sums(d);
  vectorise([&]() __attribute__((always_inline)) {
    for (int64_t t = 0; t < tokens; ++t) {
      const S *keys = kv + t * (n + 1) * d, *value = keys + n * d;
      S *dkeys = dkv + t * (n + 1) * d, *dvalue = dkeys + n * d;
      T* dv = value_sums.data();
      for (int64_t i = 0; i < d; ++i) dv[i] = T(0);
      for (int64_t k = 0; k < n; ++k) {
        const int64_t row = t * n + k;
        const S *x = streams + row * d, *key = keys + k * d, *up = dout + row * d;
        const T* g = gain + k * d;
        const auto [dot, x_factor, key_factor, gate] = sums[row];
        const T dgate =
            sum_of<T>(d, [&](int64_t i) __attribute__((always_inline)) { return widened(up[i]) * widened(value[i]); });
        const T size = std::abs(dot);
        // Through sigmoid and root; below the floor, and where the gate is closed, nothing.
        const T ddot = closed[t] || size < T(kFloor) ? T(0) : dgate * gate * (T(1) - gate) * T(0.5) / std::sqrt(size);
        const T direct = ddot * scale * x_factor * key_factor;
        const T back_x = ddot * dot * x_factor * x_factor / T(d), back_key = ddot * dot * key_factor * key_factor / T(d);
        S *dx = dstreams + row * d, *dkey = dkeys + k * d;
        T* dg = dgain + k * d;
#pragma GCC ivdep
        for (int64_t j = 0; j < d; ++j) {
          const T a = widened(x[j]), b = widened(key[j]), above = widened(up[j]);
          dx[j] = narrowed_to<S>(above + direct * g[j] * b - back_x * a);
          dkey[j] = narrowed_to<S>(direct * g[j] * a - back_key * b);
          dg[j] += direct * a * b;
          dv[j] += gate * above;
        }
      }
#pragma GCC ivdep
      for (int64_t i = 0; i < d; ++i) dvalue[i] = narrowed_to<S>(dv[i]);
    }
  });
}

#define HP_INSTANTIATE(S, T)                                                                                                   \
  template void forward<S, T>(int64_t, int64_t, int64_t, double, const S*, const S*, const T*, const bool*, S*, Sums<T>*);     \
  template void backward<S, T>(int64_t, int64_t, int64_t, const S*, const S*, const T*, const bool*, const Sums<T>*, const S*, \
                               S*, S*, T*);
HP_INSTANTIATE(float, float)
HP_INSTANTIATE(double, double)
HP_INSTANTIATE(Bfloat16Bits, float)
#undef HP_INSTANTIATE

}  // namespace hyperparallel::kernels::engram
