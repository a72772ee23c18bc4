#include "kernels/moe/activation.h"

#include <limits>
#include <vector>

#include "base/vectorise.h"
#include "kernels/storage.h"
#include "kernels/vector_math.h"

namespace hyperparallel::kernels::moe {
namespace {

template <class T>
HP_INLINE T sigmoid(T x) {
  const T most = T(87);
  return T(1) / (T(1) + vector_exp(x < -most ? most : -x));
}

}  // namespace

// Loops compute on rows of T; those of another type are widened before and narrowed after, since compilers vectorise no loop that
// mixes many of both.
template <class S, class T>
void activate(int64_t rows, int64_t width, const T* hidden, const T* weights, double limit, S* kept, S* out) {
  const T most = limit > 0 ? T(limit) : std::numeric_limits<T>::infinity();
  std::vector<T> rounded(2 * width), result(width);
  vectorise([&]() __attribute__((always_inline)) {
    for (int64_t row = 0; row < rows; ++row) {
      const T weight = weights ? weights[row] : T(1);
      S* own = kept + row * 2 * width;
      narrow(hidden + row * 2 * width, 2 * width, own);
      const T* gate = hidden + row * 2 * width;
      if constexpr (!std::is_same_v<S, T>) {
        for (int64_t i = 0; i < 2 * width; ++i) rounded[i] = widened(own[i]);
        gate = rounded.data();
      }
      const T* up = gate + width;
      T* to = result.data();
#pragma GCC ivdep
      for (int64_t i = 0; i < width; ++i) {
        const T g = gate[i] > most ? most : gate[i], u = up[i] > most ? most : up[i] < -most ? -most : up[i];
        to[i] = g * sigmoid(g) * u * weight;
      }
      narrow(to, width, out + row * width);
    }
  });
}

template <class S, class T>
void activate_backward(int64_t rows, int64_t width, const S* kept, const T* dout, const T* weights, double limit, S* out,
                       S* dhidden, T* dweights) {
  const T most = limit > 0 ? T(limit) : std::numeric_limits<T>::infinity();
  std::vector<T> widened_row(2 * width), result(width), dresult(2 * width), terms(width);  // terms: of the weight's gradient
  vectorise([&]() __attribute__((always_inline)) {
    for (int64_t row = 0; row < rows; ++row) {
      const T weight = weights ? weights[row] : T(1);
      for (int64_t i = 0; i < 2 * width; ++i) widened_row[i] = widened(kept[row * 2 * width + i]);
      const T *gate = widened_row.data(), *up = gate + width, *d = dout + row * width;
      T *to = result.data(), *dgate = dresult.data(), *dup = dgate + width, *term = terms.data();
#pragma GCC ivdep
      for (int64_t i = 0; i < width; ++i) {
        const T g = gate[i] > most ? most : gate[i], u = up[i] > most ? most : up[i] < -most ? -most : up[i];
        const T s = sigmoid(g), silu = g * s, dy = d[i] * weight, y = silu * u;
        to[i] = y * weight;
        term[i] = d[i] * y;
        const T dg = dy * u * (s + silu * (T(1) - s)), du = dy * silu;
        dgate[i] = gate[i] > most ? T(0) : dg;
        dup[i] = u == up[i] ? du : T(0);
      }
      narrow(to, width, out + row * width);
      narrow(dgate, 2 * width, dhidden + row * 2 * width);
      if (!dweights) continue;
      T lanes[16] = {}, sum = 0;
      int64_t i = 0;
      for (; i + 16 <= width; i += 16)
        for (int l = 0; l < 16; ++l) lanes[l] += term[i + l];
      for (int l = 0; i < width; ++i, ++l) lanes[l] += term[i];
      for (int l = 0; l < 16; ++l) sum += lanes[l];
      dweights[row] = sum;
    }
  });
}

#define HP_INSTANTIATE(S, T)                                                          \
  template void activate<S, T>(int64_t, int64_t, const T*, const T*, double, S*, S*); \
  template void activate_backward<S, T>(int64_t, int64_t, const S*, const T*, const T*, double, S*, S*, T*);
HP_INSTANTIATE(float, float)
HP_INSTANTIATE(double, double)
HP_INSTANTIATE(Bfloat16Bits, float)
#undef HP_INSTANTIATE

}  // namespace hyperparallel::kernels::moe
