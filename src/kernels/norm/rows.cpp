#include "kernels/norm/rows.h"

#include <cmath>
#include <vector>

#include "base/vectorise.h"
#include "kernels/lanes.h"

namespace hyperparallel::kernels::norm {
namespace {

template <class S, class T>
HP_INLINE T rounded_to(T x) {
  return widened(narrowed_to<S>(x));
}

}  // namespace

template <class S, class T>
void forward(int64_t rows, int64_t d, double eps, const S* x, const S* gain, S* y, T* r) {
  vectorise([&]() __attribute__((always_inline)) {
    for (int64_t row = 0; row < rows; ++row) {
      const S* from = x + row * d;
      S* to = y + row * d;
      const T squares =
          sum_of<T>(d, [&](int64_t i) __attribute__((always_inline)) { return widened(from[i]) * widened(from[i]); });
      const T factor = r[row] = T(1) / std::sqrt(squares / T(d) + T(eps));
#pragma GCC ivdep
      for (int64_t i = 0; i < d; ++i) to[i] = narrowed_to<S>(rounded_to<S>(widened(from[i]) * factor) * widened(gain[i]));
    }
  });
}

template <class S, class T>
void backward(int64_t rows, int64_t d, const S* x, const S* gain, const T* r, const S* dy, S* dx, T* dgain) {
  vectorise([&]() __attribute__((always_inline)) {
    for (int64_t row = 0; row < rows; ++row) {
      const S *from = x + row * d, *up = dy + row * d;
      S* to = dx + row * d;
      const T factor = r[row];
      // With z = x r and dz = dy gain: dx = r (dz - z mean(dz z)).
      const T along = sum_of<T>(d,
                                [&](int64_t i) __attribute__((always_inline)) {
                                  return rounded_to<S>(widened(up[i]) * widened(gain[i])) * (widened(from[i]) * factor);
                                }) /
                      T(d);
#pragma GCC ivdep
      for (int64_t i = 0; i < d; ++i) {
        const T z = widened(from[i]) * factor, dz = rounded_to<S>(widened(up[i]) * widened(gain[i]));
        to[i] = narrowed_to<S>(factor * (dz - z * along));
        dgain[i] += widened(up[i]) * rounded_to<S>(z);
      }
    }
  });
}

#define HP_INSTANTIATE(S, T)                                                         \
  template void forward<S, T>(int64_t, int64_t, double, const S*, const S*, S*, T*); \
  template void backward<S, T>(int64_t, int64_t, const S*, const S*, const T*, const S*, S*, T*);
HP_INSTANTIATE(float, float)
HP_INSTANTIATE(double, double)
HP_INSTANTIATE(Bfloat16Bits, float)
#undef HP_INSTANTIATE

}  // namespace hyperparallel::kernels::norm
