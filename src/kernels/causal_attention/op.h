// Causal attention over packed documents, with grouped queries: `group` = heads / kv_heads query heads share a key head.
//
//   out[t, h, :] = sum_j softmax_j(q[t, h, :] . k[j, h / group, :] / sqrt(d)) * v[j, h / group, :]    over j = first[t] .. row[t]
//
// The logits of `chunk` queries are held at once, in backward too. Softmax and sums run in FP32 (FP64).
#pragma once

#include "base/aten.h"

namespace hyperparallel::kernels {

// q [tokens, heads, d]; k, v [keys, kv_heads, d]; first, row int64 [tokens]: rows of the keys of the document's first token and
// of the token itself -> [tokens, heads, d] in q's type. Throws InternalError when the heads cannot be grouped.
at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& first,
                            const at::Tensor& row, int64_t chunk);

}  // namespace hyperparallel::kernels
