// RMSNorm over the last axis.
//
//   rms_norm(x, gain, eps):  y = cast(x * rsqrt(mean(x^2) + eps), x.type) * gain
//
// The mean and the product run in FP32 (FP64), the gain multiplies after the cast back. Rules: docs/model.md, Residual
// streams.
#pragma once

#include "base/aten.h"

namespace hyperparallel::kernels {

// x [..., d], gain [d] in x's type -> [..., d]. One pass over x, which is what it keeps for backward; the same bits for any
// number of threads.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& gain, double eps);
// The same by library operations, for tests.
at::Tensor rms_norm_reference(const at::Tensor& x, const at::Tensor& gain, double eps);

}  // namespace hyperparallel::kernels
