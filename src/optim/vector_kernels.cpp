#include "optim/vector_kernels.h"

#include <bit>
#include <cmath>

#include "base/vectorise.h"

namespace hyperparallel::optim {
namespace {

// A stored moment as a number, and back.
template <class T>
[[gnu::always_inline]] inline T loaded(T moment) {
  return moment;
}
[[gnu::always_inline]] inline float loaded(uint16_t moment) {
  return std::bit_cast<float>(static_cast<uint32_t>(moment) << 16);
}
template <class T>
[[gnu::always_inline]] inline void store(T& moment, T value) {
  moment = value;
}
[[gnu::always_inline]] inline void store(uint16_t& moment, float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  moment = static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

template <class T, class Moment>
[[gnu::always_inline]] inline void adamw_loop(const AdamWFactors& f, int64_t size, const T* __restrict gradient,
                                              T* __restrict value, Moment* __restrict exp_avg, Moment* __restrict exp_avg_sq) {
  const T coefficient(f.coefficient), beta1(f.beta1), rest1(1 - f.beta1), beta2(f.beta2), rest2(1 - f.beta2);
  const T eps(f.eps), decay(f.decay), step_size(f.step_size), root_scale(f.root_scale);
  for (int64_t i = 0; i < size; ++i) {
    const T g = coefficient * gradient[i];
    const T m = beta1 * loaded(exp_avg[i]) + rest1 * g;
    const T v = beta2 * loaded(exp_avg_sq[i]) + rest2 * (g * g);
    store(exp_avg[i], m);
    store(exp_avg_sq[i], v);
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

}  // namespace

void adamw_update(const AdamWFactors& factors, int64_t size, const float* gradient, float* value, float* exp_avg,
                  float* exp_avg_sq) {
  vectorise([&]() __attribute__((always_inline)) { adamw_loop(factors, size, gradient, value, exp_avg, exp_avg_sq); });
}
void adamw_update(const AdamWFactors& factors, int64_t size, const double* gradient, double* value, double* exp_avg,
                  double* exp_avg_sq) {
  vectorise([&]() __attribute__((always_inline)) { adamw_loop(factors, size, gradient, value, exp_avg, exp_avg_sq); });
}
void adamw_update(const AdamWFactors& factors, int64_t size, const float* gradient, float* value, uint16_t* exp_avg,
                  uint16_t* exp_avg_sq) {
  vectorise([&]() __attribute__((always_inline)) { adamw_loop(factors, size, gradient, value, exp_avg, exp_avg_sq); });
}
double sum_of_squares(int64_t size, const float* elements) {
  double sum = 0;
  vectorise([&]() __attribute__((always_inline)) { sum = sum_of_squares_loop(size, elements); });
  return sum;
}
double sum_of_squares(int64_t size, const double* elements) {
  double sum = 0;
  vectorise([&]() __attribute__((always_inline)) { sum = sum_of_squares_loop(size, elements); });
  return sum;
}

}  // namespace hyperparallel::optim
