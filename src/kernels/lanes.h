// Sums that go side by side, so that every instruction set gives the same bits (base/vectorise.h, NOTE [Same bits]).
#pragma once

namespace hyperparallel::kernels {

constexpr int kLanes = 16;

// Their sum; the array is used up.
template <class T>
[[gnu::always_inline]] inline T folded(T* lanes) {
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
  return lanes[0];
}

}  // namespace hyperparallel::kernels
