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
//   x of a site              = rms_norm(collapse(X, pre of the site before), gain)
//
// Coefficients are FP32 (FP64); collapse and expand compute in it and cast to the streams' type.
// Implementations: library operations and autograd (reference); coefficients by a kernel of their own, forward and backward
// (fused); whole sites by blocks of tokens, which read and write the streams once (mega: kernels/mhc/mega.h).
#pragma once

#include "base/aten.h"

#include "kernels/choice.h"

namespace hyperparallel::kernels {

struct MixParameters {
  at::Tensor fn;     // [(2 + n) n, n d] in the math type
  at::Tensor scale;  // [3]
  at::Tensor base;   // [(2 + n) n]
  at::Tensor gain;   // [d], of the sublayer's norm
  double rms_eps = 0, hc_eps = 0;
  int64_t iterations = 1;
};

struct MixCoefficients {
  at::Tensor pre;   // [tokens, n]
  at::Tensor post;  // [tokens, n]
  at::Tensor comb;  // [tokens, n, n] as [source, destination]
};
struct MixIn {
  MixCoefficients coefficients;
  at::Tensor x;  // [tokens, d], normalised input of the sublayer
};
struct Boundary {
  at::Tensor streams;
  MixIn in;
};

// Coefficients of streams [tokens, n, d], and the sublayer's input by `given` [tokens, n], `pre` of the site before.
MixIn mix_in(const at::Tensor& streams, const at::Tensor& given, const MixParameters& parameters, Implementation how);
// y [tokens, d] -> [tokens, n, d]
at::Tensor expand(const at::Tensor& y, const at::Tensor& streams, const at::Tensor& post, const at::Tensor& comb,
                  Implementation how);
// expand(y, streams, post, comb), then mix_in of the result.
Boundary boundary(const at::Tensor& y, const at::Tensor& streams, const at::Tensor& post, const at::Tensor& comb,
                  const at::Tensor& given, const MixParameters& parameters, Implementation how);
// The implementations that streams of this type can have.
std::vector<Candidate> mhc_candidates(at::ScalarType streams, bool on_cpu);

// -> [tokens, d]
at::Tensor collapse(const at::Tensor& streams, const at::Tensor& pre);

// The coefficients alone, by a kernel of their own where the streams are on a CPU.
MixCoefficients mix_coefficients(const at::Tensor& streams, const at::Tensor& fn, const at::Tensor& scale, const at::Tensor& base,
                                 double rms_eps, double hc_eps, int64_t iterations);
namespace reference {
MixCoefficients mix_coefficients(const at::Tensor& streams, const at::Tensor& fn, const at::Tensor& scale, const at::Tensor& base,
                                 double rms_eps, double hc_eps, int64_t iterations);
}

}  // namespace hyperparallel::kernels
