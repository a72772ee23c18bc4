// Rotary positions over rows in memory: the loops of kernels/rope/cpu.cpp. S is float, double or Bfloat16Bits.
#pragma once

#include <cstdint>

#include "kernels/storage.h"

namespace hyperparallel::kernels::rope {

// out = x with the last 2 `pairs` of `channels` rotated, for `rows` rows of every one of `tokens` tokens; cos and sin
// [tokens, pairs]. T is the math type of S.
template <class S, class T>
void rotate(int64_t tokens, int64_t rows, int64_t channels, int64_t pairs, const S* x, const T* cos, const T* sin, bool inverse,
            S* out);

}  // namespace hyperparallel::kernels::rope
