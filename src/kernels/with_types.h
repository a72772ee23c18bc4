// From a tensor's type to those of plain loops.
#pragma once

#include "base/aten.h"

#include "base/error.h"
#include "kernels/storage.h"

namespace hyperparallel::kernels {

// body(S{}, T{}): how numbers lie in memory (kernels/storage.h), and the math type.
template <class Body>
void with_types(at::ScalarType type, const Body& body) {
  switch (type) {
    case at::kFloat:
      return body(float{}, float{});
    case at::kDouble:
      return body(double{}, double{});
    case at::kBFloat16:
      return body(Bfloat16Bits{}, float{});
    default:
      throw InternalError("a kernel for numbers of type {}", at::toString(type));
  }
}

template <class S>
const S* data(const at::Tensor& x) {
  return static_cast<const S*>(x.const_data_ptr());
}
template <class S>
S* writable(const at::Tensor& x) {
  return static_cast<S*>(x.mutable_data_ptr());
}

}  // namespace hyperparallel::kernels
