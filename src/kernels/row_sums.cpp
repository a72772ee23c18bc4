#include "kernels/row_sums.h"

#include "base/vectorise.h"
#include "kernels/storage.h"

namespace hyperparallel::kernels {

template <class S, class T>
void narrow_row(const T* from, int64_t size, S* to) {
  vectorise([&]() __attribute__((always_inline)) { narrow(from, size, to); });
}

template <class To, class From>
void sum_rows(const From* const* rows, int64_t count, int64_t size, To* to) {
  using T = decltype(widened(From()));
  vectorise([&]() __attribute__((always_inline)) {
    constexpr int64_t kBlock = 64;
    for (int64_t first = 0; first < size; first += kBlock) {
      const int64_t n = size - first < kBlock ? size - first : kBlock;
      T sum[kBlock] = {};
      for (int64_t r = 0; r < count; ++r)
        for (int64_t i = 0; i < n; ++i) sum[i] += widened(rows[r][first + i]);
      for (int64_t i = 0; i < n; ++i) to[first + i] = narrowed_to<To>(sum[i]);
    }
  });
}

template void narrow_row<float, float>(const float*, int64_t, float*);
template void narrow_row<double, double>(const double*, int64_t, double*);
template void narrow_row<Bfloat16Bits, float>(const float*, int64_t, Bfloat16Bits*);
template void sum_rows<float, float>(const float* const*, int64_t, int64_t, float*);
template void sum_rows<double, double>(const double* const*, int64_t, int64_t, double*);
template void sum_rows<Bfloat16Bits, Bfloat16Bits>(const Bfloat16Bits* const*, int64_t, int64_t, Bfloat16Bits*);
template void sum_rows<Bfloat16Bits, float>(const float* const*, int64_t, int64_t, Bfloat16Bits*);

}  // namespace hyperparallel::kernels
