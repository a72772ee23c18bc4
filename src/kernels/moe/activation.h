// The clamped SwiGLU of op.h over rows of a tile, and what becomes of it on the way back. S: float, double or Bfloat16Bits
// (kernels/storage.h); T is float (double).
#pragma once

#include <cstdint>

namespace hyperparallel::kernels::moe {

// hidden [rows, 2 width]: gate, up, as products left them. Writes them as S to `kept`, and
// silu(gate) up weight [rows, width] to `out`. weights [rows]; nullptr: ones.
template <class S, class T>
void activate(int64_t rows, int64_t width, const T* hidden, const T* weights, double limit, S* kept, S* out);

// From kept [rows, 2 width] and dout [rows, width]: out again, dhidden [rows, 2 width] and, where there are weights, dweights
// [rows].
template <class S, class T>
void activate_backward(int64_t rows, int64_t width, const S* kept, const T* dout, const T* weights, double limit, S* out,
                       S* dhidden, T* dweights);

}  // namespace hyperparallel::kernels::moe
