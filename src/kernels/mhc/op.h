// Single-pass mHC: n residual streams, mixed by coefficients that are computed from the streams. Rules:
// docs/model.md, Residual streams; the mHC paper (arXiv 2512.24880) and equation 6 of the V4.1 Technical Report.
//
//   mix_coefficients(X, fn, scale, base):                          X [tokens, n, d], one row x = flatten(X[t])
//     m = (fn x) * rsqrt(mean(x^2) + rms_eps)                      [(2 + n) n]
//     pre[k]  = sigmoid(m[k] * scale[0] + base[k]) + hc_eps
//     post[k] = 2 sigmoid(m[n + k] * scale[1] + base[n + k])
//     C = softmax over destinations of (m[2n:] * scale[2] + base[2n:]) as [source, destination], + hc_eps
//     C /= sum over sources + hc_eps;  then iterations - 1 times: C /= sum over destinations + hc_eps; C /= sum over sources +
//     hc_eps
//   collapse(X, p)           = sum_k p[k] X[k]
//   expand(y, R, post, C)[k] = post[k] y + sum_j C[j, k] R[j]
//
// On CPUs the coefficients are one fused kernel, forward and backward; the reference is library operations and autograd.
// Coefficients are FP32 (FP64); collapse and expand compute in it and cast to the streams' type.
#pragma once

#include "base/aten.h"

namespace hyperparallel::kernels {

struct MixCoefficients {
  at::Tensor pre;   // [tokens, n]
  at::Tensor post;  // [tokens, n]
  at::Tensor comb;  // [tokens, n, n] as [source, destination]
};

// streams [tokens, n, d]; fn [(2 + n) n, n d], scale [3], base [(2 + n) n] in the math type.
MixCoefficients mix_coefficients(const at::Tensor& streams, const at::Tensor& fn, const at::Tensor& scale, const at::Tensor& base,
                                 double rms_eps, double hc_eps, int64_t iterations);
namespace reference {
MixCoefficients mix_coefficients(const at::Tensor& streams, const at::Tensor& fn, const at::Tensor& scale, const at::Tensor& base,
                                 double rms_eps, double hc_eps, int64_t iterations);
}
// -> [tokens, d]
at::Tensor collapse(const at::Tensor& streams, const at::Tensor& pre);
// y [tokens, d] -> [tokens, n, d]
at::Tensor expand(const at::Tensor& y, const at::Tensor& streams, const at::Tensor& post, const at::Tensor& comb);

}  // namespace hyperparallel::kernels
