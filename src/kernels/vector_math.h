// Elementary functions that compilers can put into vectors: plain arithmetic without branches or tables.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace hyperparallel::kernels {

// exp(x) for x <= 88, to 2 units in the last place; 0 below about -87. -inf gives 0.
[[gnu::always_inline]] inline float vector_exp(float x) {
  constexpr float kLog2E = 1.44269504088896341f, kHigh = 0.693359375f, kLow = -2.12194440e-4f;
  const float given = x;
  x = x < -87.3f ? -87.3f : x;
  const float n = std::bit_cast<float>(std::bit_cast<uint32_t>(x * kLog2E + 12582912.0f)) - 12582912.0f;  // nearest integer
  const float r = (x - n * kHigh) - n * kLow;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  const float scale = std::bit_cast<float>(static_cast<uint32_t>(static_cast<int32_t>(n) + 127) << 23);
  return given < -87.3f ? 0.0f : p * scale;
}
inline double vector_exp(double x) {
  return std::exp(x);
}

// log(1 + x) for x in [0, 1], to 2 units in the last place.
[[gnu::always_inline]] inline float vector_log1p(float x) {
  const bool is_large = x > 0.41421356f;
  const float f = is_large ? (x - 1.0f) * 0.5f : x;  // 1 + f is 1 + x, or half of it
  float p = 7.0376836292e-2f;
  p = p * f - 1.1514610310e-1f;
  p = p * f + 1.1676998740e-1f;
  p = p * f - 1.2420140846e-1f;
  p = p * f + 1.4249322787e-1f;
  p = p * f - 1.6668057665e-1f;
  p = p * f + 2.0000714765e-1f;
  p = p * f - 2.4999993993e-1f;
  p = p * f + 3.3333331174e-1f;
  const float square = f * f;
  return (f + (p * f * square - 0.5f * square)) + (is_large ? 0.693147180559945f : 0.0f);
}
inline double vector_log1p(double x) {
  return std::log1p(x);
}

}  // namespace hyperparallel::kernels
