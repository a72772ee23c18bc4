// The Engram gate: how much of the looked-up value enters each stream. Rules: docs/model.md, Engram.
//
//   dot  = sum_d X[k, d] q_weight[k, d] k_weight[k, d] key[k, d] * rsqrt(mean X[k]^2 + eps) * rsqrt(mean key[k]^2 + eps) * D^-0.5
//   gate = sigmoid(copysign(sqrt(max(|dot|, 1e-6)), dot)), 0 where closed; below the floor dot gets no gradient
//   out[k] = X[k] + gate[k] * value
#pragma once

#include "base/aten.h"

#include <utility>
#include <vector>

#include "kernels/choice.h"

namespace hyperparallel::kernels {

// streams [tokens, n, d]; kv [tokens, (n + 1) d]: keys of the streams, then the value; q_weight, k_weight [n, d]; closed bool
// [tokens] -> gate [tokens, n] FP32 (FP64), not to be derived; streams after the write [tokens, n, d]. Fused: one pass forward
// and one backward, which keep streams and kv alone; the same bits for any number of threads.
std::pair<at::Tensor, at::Tensor> engram_write(const at::Tensor& streams, const at::Tensor& kv, const at::Tensor& q_weight,
                                               const at::Tensor& k_weight, const at::Tensor& closed, double eps,
                                               Implementation how = Implementation::kFused);
std::pair<at::Tensor, at::Tensor> engram_write_reference(const at::Tensor& streams, const at::Tensor& kv,
                                                         const at::Tensor& q_weight, const at::Tensor& k_weight,
                                                         const at::Tensor& closed, double eps);
std::vector<Candidate> engram_candidates();

}  // namespace hyperparallel::kernels
