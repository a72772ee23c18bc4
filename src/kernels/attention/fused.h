// csa2_attention and chosen_attention of op.h, query by query without a gathered copy of any key, in the math type throughout
// (inputs of BF16 are widened once, results rounded once). Backward keeps nothing but the
// inputs and forms probabilities again. The same bits for any number of threads.
#pragma once

#include "base/aten.h"

namespace hyperparallel::kernels::attention {

// How many sums of their own the gradients of shared keys have (NOTE [Parts] in fused.cpp), for plans.
int64_t gradient_parts(int64_t tokens, int64_t groups, int64_t d, size_t element);

at::Tensor fused_attention(const at::Tensor& q, const at::Tensor& window_kv, const at::Tensor& compressed_kv,
                           const at::Tensor& topk, const at::Tensor& sink, const at::Tensor& row, const at::Tensor& start,
                           int64_t window);

at::Tensor fused_chosen_attention(const at::Tensor& q, const at::Tensor& window_kv, const at::Tensor& compressed_kv,
                                  const at::Tensor& topk, const at::Tensor& sink, const at::Tensor& row, const at::Tensor& start,
                                  int64_t window, bool windowed);

}  // namespace hyperparallel::kernels::attention
