// Tensors, and the functions of libtorch that this project calls. <ATen/ATen.h> declares all three thousand, which costs every
// file a second of compilation; a function that is missing here is added by its header.
#pragma once

#include <ATen/Dispatch.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/_unique.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/bincount.h>
#include <ATen/ops/bmm.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/copysign.h>
#include <ATen/ops/cos.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/einsum.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/floor_divide.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/log_softmax.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/nonzero.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/quantile.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/remainder.h>
#include <ATen/ops/round.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/sigmoid.h>
#include <ATen/ops/silu.h>
#include <ATen/ops/sin.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/softplus.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

namespace hyperparallel {

// NOTE [First calls of vector math]: libtorch computes sin, log and the like with MKL's vector math, which chooses the code of a
// function when the function is first called. Where several threads are the first at once, one of them may run the code of low
// accuracy, with errors of 1e-4 (pytorch/pytorch#188792; about one process of two thousand). So every function is called before
// main, on one thread.
inline const bool vector_math_is_chosen = [] {
  for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
    const at::Tensor x = at::full({1}, 0.5, type);
    for (const auto function :
         {&at::Tensor::acos, &at::Tensor::asin, &at::Tensor::atan, &at::Tensor::cos, &at::Tensor::erf, &at::Tensor::erfc,
          &at::Tensor::erfinv, &at::Tensor::exp, &at::Tensor::log, &at::Tensor::log10, &at::Tensor::log2, &at::Tensor::sin,
          &at::Tensor::sqrt, &at::Tensor::tan, &at::Tensor::tanh, &at::Tensor::trunc})
      (x.*function)();
  }
  return true;
}();

}  // namespace hyperparallel
