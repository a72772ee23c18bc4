#include "optim/vector_kernels.h"

#include <cmath>

namespace hyperparallel::optim {
namespace {

template <class T>
[[gnu::always_inline]] inline void adamw_loop(const AdamWFactors& f, int64_t size, const T* __restrict gradient,
                                              T* __restrict value, T* __restrict exp_avg, T* __restrict exp_avg_sq) {
  const T coefficient(f.coefficient), beta1(f.beta1), rest1(1 - f.beta1), beta2(f.beta2), rest2(1 - f.beta2);
  const T eps(f.eps), decay(f.decay), step_size(f.step_size), root_scale(f.root_scale);
  for (int64_t i = 0; i < size; ++i) {
    const T g = coefficient * gradient[i];
    const T m = beta1 * exp_avg[i] + rest1 * g;
    const T v = beta2 * exp_avg_sq[i] + rest2 * (g * g);
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    value[i] = decay * value[i] - step_size * m / (std::sqrt(v) * root_scale + eps);
  }
}

template <class T>
[[gnu::always_inline]] inline double sum_of_squares_loop(int64_t size, const T* elements) {
  constexpr int kLanes = 16;
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const double x = elements[i + lane];
      lanes[lane] += x * x;
    }
  }
  for (int lane = 0; i < size; ++i, ++lane) {
    const double x = elements[i];
    lanes[lane] += x * x;
  }
  double sum = 0;
  for (double lane : lanes) sum += lane;
  return sum;
}

#if defined(__x86_64__)
enum class InstructionSet { kBaseline, kAvx2, kAvx512 };
const InstructionSet kInstructionSet = __builtin_cpu_supports("avx512f") ? InstructionSet::kAvx512
                                       : __builtin_cpu_supports("avx2")  ? InstructionSet::kAvx2
                                                                         : InstructionSet::kBaseline;
#define HP_DISPATCH(T)                                                                                           \
  [[gnu::target("avx512f")]] void adamw_avx512(const AdamWFactors& f, int64_t n, const T* g, T* w, T* m, T* v) { \
    adamw_loop(f, n, g, w, m, v);                                                                                \
  }                                                                                                              \
  [[gnu::target("avx2")]] void adamw_avx2(const AdamWFactors& f, int64_t n, const T* g, T* w, T* m, T* v) {      \
    adamw_loop(f, n, g, w, m, v);                                                                                \
  }                                                                                                              \
  void adamw_dispatch(const AdamWFactors& f, int64_t n, const T* g, T* w, T* m, T* v) {                          \
    if (kInstructionSet == InstructionSet::kAvx512) return adamw_avx512(f, n, g, w, m, v);                       \
    if (kInstructionSet == InstructionSet::kAvx2) return adamw_avx2(f, n, g, w, m, v);                           \
    adamw_loop(f, n, g, w, m, v);                                                                                \
  }                                                                                                              \
  [[gnu::target("avx512f")]] double squares_avx512(int64_t n, const T* x) {                                      \
    return sum_of_squares_loop(n, x);                                                                            \
  }                                                                                                              \
  [[gnu::target("avx2")]] double squares_avx2(int64_t n, const T* x) {                                           \
    return sum_of_squares_loop(n, x);                                                                            \
  }                                                                                                              \
  double squares_dispatch(int64_t n, const T* x) {                                                               \
    if (kInstructionSet == InstructionSet::kAvx512) return squares_avx512(n, x);                                 \
    if (kInstructionSet == InstructionSet::kAvx2) return squares_avx2(n, x);                                     \
    return sum_of_squares_loop(n, x);                                                                            \
  }
#else
#define HP_DISPATCH(T)                                                                  \
  void adamw_dispatch(const AdamWFactors& f, int64_t n, const T* g, T* w, T* m, T* v) { \
    adamw_loop(f, n, g, w, m, v);                                                       \
  }                                                                                     \
  double squares_dispatch(int64_t n, const T* x) {                                      \
    return sum_of_squares_loop(n, x);                                                   \
  }
#endif
HP_DISPATCH(float)
HP_DISPATCH(double)
#undef HP_DISPATCH

}  // namespace

void adamw_update(const AdamWFactors& factors, int64_t size, const float* gradient, float* value, float* exp_avg,
                  float* exp_avg_sq) {
  adamw_dispatch(factors, size, gradient, value, exp_avg, exp_avg_sq);
}
void adamw_update(const AdamWFactors& factors, int64_t size, const double* gradient, double* value, double* exp_avg,
                  double* exp_avg_sq) {
  adamw_dispatch(factors, size, gradient, value, exp_avg, exp_avg_sq);
}
double sum_of_squares(int64_t size, const float* elements) {
  return squares_dispatch(size, elements);
}
double sum_of_squares(int64_t size, const double* elements) {
  return squares_dispatch(size, elements);
}

}  // namespace hyperparallel::optim
