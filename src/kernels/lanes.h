// Sums that go side by side, so that every instruction set gives the same bits (base/vectorise.h, NOTE [Same bits]).
#pragma once

#include <cstdint>

namespace hyperparallel::kernels {

constexpr int kLanes = 16;

// Their sum; the array is used up.
template <class T>
[[gnu::always_inline]] inline T folded(T* lanes) {
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  return lanes[0];
}

// The sum of at(i) for i below `size`.
template <class T, class At>
[[gnu::always_inline]] inline T sum_of(int64_t size, const At& at) {
  T lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= size; i += kLanes)
    for (int l = 0; l < kLanes; ++l) lanes[l] += at(i + l);
  for (int l = 0; i < size; ++i, ++l) lanes[l] += at(i);
  return folded(lanes);
}

}  // namespace hyperparallel::kernels
