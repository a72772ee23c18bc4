// The type that sums, norms, softmax and coefficients compute in: FP64 for FP64 tensors, FP32 for everything else.
#pragma once

#include "base/aten.h"

namespace hyperparallel::kernels {

inline at::ScalarType math_type(at::ScalarType type) {
  return type == at::kDouble ? at::kDouble : at::kFloat;
}
inline at::Tensor to_math(const at::Tensor& tensor) {
  return tensor.to(math_type(tensor.scalar_type()));
}

}  // namespace hyperparallel::kernels
