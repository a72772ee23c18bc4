#include "kernels/rope/rows.h"

#include <cstring>

#include "base/vectorise.h"

namespace hyperparallel::kernels::rope {

template <class S, class T>
void rotate(int64_t tokens, int64_t rows, int64_t channels, int64_t pairs, const S* x, const T* cos, const T* sin, bool inverse,
            S* out) {
  const int64_t kept = channels - 2 * pairs;
  const T sign = inverse ? T(-1) : T(1);
  vectorise([&]() __attribute__((always_inline)) {
    for (int64_t t = 0; t < tokens; ++t) {
      const T *c = cos + t * pairs, *s = sin + t * pairs;
      for (int64_t r = 0; r < rows; ++r) {
        const S* from = x + (t * rows + r) * channels;
        S* to = out + (t * rows + r) * channels;
        std::memcpy(to, from, kept * sizeof(S));
#pragma GCC ivdep
        for (int64_t i = 0; i < pairs; ++i) {
          const T even = widened(from[kept + 2 * i]), odd = widened(from[kept + 2 * i + 1]), along = s[i] * sign;
          to[kept + 2 * i] = narrowed_to<S>(even * c[i] - odd * along);
          to[kept + 2 * i + 1] = narrowed_to<S>(odd * c[i] + even * along);
        }
      }
    }
  });
}

#define HP_INSTANTIATE(S, T) \
  template void rotate<S, T>(int64_t, int64_t, int64_t, int64_t, const S*, const T*, const T*, bool, S*);
HP_INSTANTIATE(float, float)
HP_INSTANTIATE(double, double)
HP_INSTANTIATE(Bfloat16Bits, float)
#undef HP_INSTANTIATE

}  // namespace hyperparallel::kernels::rope
