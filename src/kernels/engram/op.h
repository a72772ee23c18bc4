// The Engram gate: how much of the looked-up value enters each stream. Rules: docs/model.md, Engram.
//
//   dot  = sum_d X[k, d] q_weight[k, d] k_weight[k, d] key[k, d] * rsqrt(mean X[k]^2 + eps) * rsqrt(mean key[k]^2 + eps) * D^-0.5
//   gate = sigmoid(copysign(sqrt(max(|dot|, 1e-6)), dot)), 0 where closed; below the floor dot gets no gradient
//   out[k] = X[k] + gate[k] * value
#pragma once

#include "base/aten.h"

#include <utility>

namespace hyperparallel::kernels {

// streams, key [tokens, n, d]; value [tokens, d]; q_weight, k_weight [n, d]; closed bool [tokens]
// -> gate [tokens, n] FP32 (FP64), streams after the write [tokens, n, d].
std::pair<at::Tensor, at::Tensor> engram_write(const at::Tensor& streams, const at::Tensor& key, const at::Tensor& value,
                                               const at::Tensor& q_weight, const at::Tensor& k_weight, const at::Tensor& closed,
                                               double eps);

}  // namespace hyperparallel::kernels
