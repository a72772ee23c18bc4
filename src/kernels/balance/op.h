// The sequence-wise balance loss of a router (V3 report 2.1.2; V4.1 keeps it). For a sequence of T tokens and E experts, each
// token choosing k of them:
//   f[i] = tokens that chose i / (k T)      P[i] = mean over tokens of score[i] / sum of the token's scores
//   loss = E sum_i f[i] P[i]                                                              f is a constant in backward
// Ranks that hold tokens of the same sequences add up what `sequence_shares` and `sequence_counts` give them, and one of each
// pair of factors may stay a part: the loss is linear in the shares.
#pragma once

#include "base/aten.h"

namespace hyperparallel::kernels {

// scores [tokens, experts], positive; sequence int64 [tokens]: the token's, or -1: none -> [sequences, experts], the sum over the
// sequence's tokens of their scores divided by their sum. Differentiable.
at::Tensor sequence_shares(const at::Tensor& scores, const at::Tensor& sequence, int64_t sequences);

// expert_ids int64 [tokens, k] -> int64 [sequences, experts]: how many tokens of the sequence chose the expert.
at::Tensor sequence_counts(const at::Tensor& expert_ids, const at::Tensor& sequence, int64_t sequences, int64_t experts);

// The sum of the losses of all sequences, a scalar; `length` int64 [sequences]: T, of which some may be 0: no sequence.
at::Tensor balance_loss(const at::Tensor& shares, const at::Tensor& counts, const at::Tensor& length, int64_t k);

}  // namespace hyperparallel::kernels
