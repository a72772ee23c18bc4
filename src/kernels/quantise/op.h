// Fake quantisation of the caches, straight-through: backward is the identity. Rules: docs/model.md, Attention.
//
// All three work on blocks of consecutive channels of the last axis, in FP32, clamp to the format's maximum, round to nearest
// even, multiply back and cast to the input's type. When the channels are no multiple of the block, the tensor comes back
// unchanged.
//   fp8_window    E4M3, blocks of 32, scale 2^ceil(log2(max(amax, 1e-4) / 448))
//   fp4_kv        E2M1, blocks of 16, scale = E4M3(max(amax, 6 * 2^-9) / 6)
//   fp4_index     E2M1, blocks of 32, scale 2^ceil(log2(max(amax, 6 * 2^-126) / 6))
// For the power-of-two scales the division is a product with the FP32 reciprocal and the exponent is read from the bits.
#pragma once

#include "base/aten.h"

namespace hyperparallel::kernels {

at::Tensor fp8_window(const at::Tensor& x);
at::Tensor fp4_kv(const at::Tensor& x);
at::Tensor fp4_index(const at::Tensor& x);

}  // namespace hyperparallel::kernels
