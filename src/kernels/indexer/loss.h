// What trains the indexer: its scores of the chosen groups are to be distributed as the attention of the same layer is. Rules:
// docs/model.md, Losses.
//
//   student(t, .) = softmax over topk[t] of score(t, g)                                   score: op.h
//   teacher(t, .) = sum over heads of the attention on topk[t], divided by its sum        attention/op.h, chosen_attention
//   loss(t)       = sum over topk[t] of teacher (log teacher - log student), 0 where topk[t] is empty
#pragma once

#include "kernels/indexer/op.h"

namespace hyperparallel::kernels {

// The scores of the chosen groups, [tokens, k] in the math type; 0 where topk is -1. `topk` int32 [tokens, k]. Differentiable in
// q, weights and keys; where the heads lie on several ranks a part of the sum over them (`queries.sum` is not called). Works in
// chunks of at most `chunk` queries, forward and backward.
at::Tensor chosen_scores(const IndexQueries& queries, const at::Tensor& keys, const at::Tensor& topk, int64_t chunk);

// loss(t), [tokens]. `scores` and `attention` [tokens, k]: sums over all heads; `attention` need not sum to 1. Differentiable in
// the scores.
at::Tensor indexer_loss(const at::Tensor& scores, const at::Tensor& attention, const at::Tensor& topk);

}  // namespace hyperparallel::kernels
