// csa2_attention and chosen_attention of op.h, query by query without a gathered copy of any key. Sums are in the math type and
// results are rounded once; BF16 is multiplied in tiles or in pairs where the processor can (amx.h, pairs.h), else widened.
// Backward keeps nothing but the inputs and forms probabilities again. The same bits for any number of threads.
#pragma once

#include "base/aten.h"

namespace hyperparallel::kernels::attention {

// How many sums of their own the gradients of shared keys have (NOTE [Parts] in fused.cpp), for plans.
int64_t gradient_parts(int64_t tokens, int64_t groups, int64_t d, size_t element);
// Whether keys of d channels of this type are read as they are, in pairs.
bool takes_pairs(at::ScalarType type, int64_t d);

at::Tensor fused_attention(const at::Tensor& q, const at::Tensor& window_kv, const at::Tensor& compressed_kv,
                           const at::Tensor& topk, const at::Tensor& sink, const at::Tensor& row, const at::Tensor& start,
                           int64_t window);

at::Tensor fused_chosen_attention(const at::Tensor& q, const at::Tensor& window_kv, const at::Tensor& compressed_kv,
                                  const at::Tensor& topk, const at::Tensor& sink, const at::Tensor& row, const at::Tensor& start,
                                  int64_t window, bool windowed);

}  // namespace hyperparallel::kernels::attention
