// CSA2 attention of one layer: every query sees its window and its chosen compressed groups; one key/value head. Rules:
// docs/model.md, Attention.
//
//   keys(t) = window_kv[max(row[t] - window + 1, start[t]) .. row[t]]  and  compressed_kv[g] for g in topk[t], g >= 0
//   p       = softmax over {keys, sink} of (q[t, h] . key * d^-0.5 ; sink[h])            FP32; the sink has no value
//   out[t, h] = sum over keys of p * key                     products, and the scaled logits, round to q's type
//
// Queries may be fewer than keys: a query's own key is `row[t]`, so rows of a halo or of earlier tokens lie between them.
// Works in chunks of queries, forward and backward: nothing of size tokens x tokens is ever formed. A chunk ends early where its
// keys lie far apart, so that it never forms more than chunk * (chunk + window) logits a head. Backward forms each chunk again.
#pragma once

#include "base/aten.h"

#include "kernels/choice.h"

namespace hyperparallel::kernels {

struct AttentionShape {
  int64_t window = 0;
  int64_t chunk = 128;  // queries per chunk of the reference, at most
  bool fused = true;    // fused.h, without chunks; false: the reference
};
std::vector<Candidate> attention_candidates();

// q [tokens, heads, d]; window_kv [keys, d]; compressed_kv [groups, d] and topk int32 [tokens, k], or both undefined; sink
// [heads] in the math type; row int64 [tokens] = index of the token's own key; start int64 [tokens] = index of its document's
// first key; neither falls
// -> [tokens, heads, d]. Differentiable in q, both KVs and sink. Where every token has one key, row is 0 .. tokens - 1.
at::Tensor csa2_attention(const at::Tensor& q, const at::Tensor& window_kv, const at::Tensor& compressed_kv,
                          const at::Tensor& topk, const at::Tensor& sink, const at::Tensor& row, const at::Tensor& start,
                          const AttentionShape& shape);

// Groups that a query may see, instead of chosen ones: first[t] .. first[t] + count[t] - 1, int64 [tokens].
struct VisibleGroups {
  at::Tensor first, count;
};
// csa2_attention with all visible groups as topk: the dense stage before an indexer is trained. Chunks hold at most 8 Mi logits,
// or one query's.
at::Tensor dense_attention(const at::Tensor& q, const at::Tensor& window_kv, const at::Tensor& compressed_kv,
                           const VisibleGroups& groups, const at::Tensor& sink, const at::Tensor& row, const at::Tensor& start,
                           const AttentionShape& shape);

// How much attention each visible group gets of queries `first` .. `first + rows - 1`, as chosen_attention says; never
// differentiated.
struct GroupAttention {
  int64_t first_group;  // of those that any of the queries sees
  at::Tensor sums;      // [rows, groups] in the math type, 0 where not visible
  at::Tensor blocked;   // bool [rows, groups]: not visible
};
GroupAttention visible_attention(const at::Tensor& q, const at::Tensor& window_kv, const at::Tensor& compressed_kv,
                                 const VisibleGroups& groups, const at::Tensor& sink, const at::Tensor& row,
                                 const at::Tensor& start, const AttentionShape& shape, bool windowed, int64_t first,
                                 int64_t rows);

// How much attention each chosen group gets, for the indexer's loss: p of above summed over the heads, [tokens, k] in the math
// type, 0 where topk is -1. `windowed` false: the softmax is over the chosen groups and the sink alone. Never differentiated.
at::Tensor chosen_attention(const at::Tensor& q, const at::Tensor& window_kv, const at::Tensor& compressed_kv,
                            const at::Tensor& topk, const at::Tensor& sink, const at::Tensor& row, const at::Tensor& start,
                            const AttentionShape& shape, bool windowed);

}  // namespace hyperparallel::kernels
