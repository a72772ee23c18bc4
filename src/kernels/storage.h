// Rows as they lie in memory and as loops compute with them: FP32 and FP64 as they are, BF16 widened to FP32. Rows in the math
// type have zeros behind their numbers up to a multiple of 16, so that loops over them need no tails. For files that see no
// libtorch.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "kernels/vectors.h"

namespace hyperparallel::kernels {

// As at::BFloat16 lies in memory. A scalar, or compilers put no loop over it into vectors.
enum class Bfloat16Bits : uint16_t {};

HP_INLINE float widened(Bfloat16Bits x) {
  return std::bit_cast<float>(static_cast<uint32_t>(x) << 16);
}
// To the nearest, ties to even; NaN stays one.
HP_INLINE Bfloat16Bits narrowed(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return static_cast<Bfloat16Bits>((bits & 0x7fffffffu) > 0x7f800000u ? 0x7fc0u : rounded);
}

HP_INLINE float widened(float x) {
  return x;
}
HP_INLINE double widened(double x) {
  return x;
}
template <class S, class T>
HP_INLINE S narrowed_to(T x) {
  if constexpr (std::is_same_v<S, T>) {
    return x;
  } else {
    return narrowed(x);
  }
}

template <class S, class T>
HP_INLINE void widen(const S* from, int64_t size, T* to) {
  for (int64_t i = 0; i < size; ++i) to[i] = widened(from[i]);
  for (int64_t i = size; i % 16 != 0; ++i) to[i] = 0;
}
template <class S, class T>
HP_INLINE void narrow(const T* from, int64_t size, S* to) {
  for (int64_t i = 0; i < size; ++i) to[i] = narrowed_to<S>(from[i]);
}
// Every number becomes the nearest of S.
template <class S, class T>
HP_INLINE void round_to(T* row, int64_t size) {
  if constexpr (!std::is_same_v<S, T>) {
    for (int64_t i = 0; i < size; ++i) row[i] = widened(narrowed(row[i]));
  }
}

// 16 numbers at once.
template <class T, class S>
HP_INLINE Vec<T, 16> load_wide(const S* from) {
  if constexpr (std::is_same_v<S, T>) {
    return load<T, 16>(from);
  } else {
    const auto bits = load<uint16_t, 16>(reinterpret_cast<const uint16_t*>(from));
    return reinterpret_cast<Vec<float, 16>>(__builtin_convertvector(bits, Vec<uint32_t, 16>) << 16);
  }
}
template <class S, class T>
HP_INLINE void store_narrow(S* to, Vec<T, 16> v) {
  if constexpr (std::is_same_v<S, T>) {
    store<T, 16>(to, v);
  } else {
    const auto bits = reinterpret_cast<Vec<uint32_t, 16>>(v);
    const auto rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    const auto kept = (bits & 0x7fffffffu) > 0x7f800000u ? (bits & 0u) + 0x7fc0u : rounded;
    store<uint16_t, 16>(reinterpret_cast<uint16_t*>(to), __builtin_convertvector(kept, Vec<uint16_t, 16>));
  }
}

}  // namespace hyperparallel::kernels
