#include "kernels/cross_entropy/rows.h"

#include <cmath>

#include "base/vectorise.h"
#include "kernels/lanes.h"
#include "kernels/vector_math.h"

namespace hyperparallel::kernels::cross_entropy {
namespace {

// exp(x - top); NaN where x is not finite, which vector_exp would not tell.
template <class T>
HP_INLINE T exp_or_nan(T x, T top) {
  return vector_exp(x - top) + (x - x);
}

}  // namespace

template <class S, class T>
void log_sums(int64_t rows, int64_t words, const S* logits, T* out) {
  vectorise([&]() __attribute__((always_inline)) {
    for (int64_t r = 0; r < rows; ++r) {
      const S* row = logits + r * words;
      T most[kLanes], sum[kLanes] = {};
      for (int l = 0; l < kLanes; ++l) most[l] = widened(row[0]);
      const int64_t whole = words / kLanes * kLanes;
      for (int64_t i = 0; i < whole; i += kLanes)
        for (int l = 0; l < kLanes; ++l) most[l] = widened(row[i + l]) > most[l] ? widened(row[i + l]) : most[l];
      for (int64_t i = whole; i < words; ++i) most[0] = widened(row[i]) > most[0] ? widened(row[i]) : most[0];
      for (int l = 1; l < kLanes; ++l) most[0] = most[l] > most[0] ? most[l] : most[0];
      const T top = most[0];
      for (int64_t i = 0; i < whole; i += kLanes)
        for (int l = 0; l < kLanes; ++l) sum[l] += exp_or_nan(widened(row[i + l]), top);
      for (int64_t i = whole; i < words; ++i) sum[i - whole] += exp_or_nan(widened(row[i]), top);
      out[r] = top + std::log(folded(sum));
    }
  });
}

template <class S, class T>
void derive(int64_t rows, int64_t words, const T* log_sums, const T* factors, const int64_t* targets, S* logits) {
  vectorise([&]() __attribute__((always_inline)) {
    for (int64_t r = 0; r < rows; ++r) {
      S* row = logits + r * words;
      const T log_sum = log_sums[r], factor = factors[r];
      const int64_t target = targets[r];
      const T of_target = target < 0 ? T(0) : vector_exp(widened(row[target]) - log_sum) * factor - T(1);
      for (int64_t i = 0; i < words; ++i) row[i] = narrowed_to<S>(vector_exp(widened(row[i]) - log_sum) * factor);
      if (target >= 0) row[target] = narrowed_to<S>(of_target);
    }
  });
}

#define HP_INSTANTIATE(S, T)                                    \
  template void log_sums<S, T>(int64_t, int64_t, const S*, T*); \
  template void derive<S, T>(int64_t, int64_t, const T*, const T*, const int64_t*, S*);
HP_INSTANTIATE(float, float)
HP_INSTANTIATE(double, double)
HP_INSTANTIATE(Bfloat16Bits, float)
#undef HP_INSTANTIATE

}  // namespace hyperparallel::kernels::cross_entropy
