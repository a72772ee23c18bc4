// Loops of the mHC coefficients over plain memory; op.h has the formula. 16 tokens go side by side, so that every step of the
// Sinkhorn iterations is one vector operation; backward runs the iterations again and keeps them on the chip's caches.
#pragma once

#include <cstdint>

namespace hyperparallel::kernels::mhc {

struct MixShape {
  int64_t n;           // streams
  int64_t iterations;  // at least 1
  double hc_eps;
  int64_t outputs() const { return (2 + n) * n; }
};

// out[t] = rsqrt(mean(x[t]^2) + eps); x [tokens, width].
template <class T>
void inverse_rms(int64_t tokens, int64_t width, double eps, const T* x, T* out);

// dx[t] -= dr[t] r[t]^3 / width * x[t]: what the factor r = rsqrt(mean(x^2) + eps) sends back. dx, x [tokens, width].
template <class T>
void add_inverse_rms_gradient(int64_t tokens, int64_t width, const T* x, const T* r, const T* dr, T* dx);

template <class T>
struct MixValues {
  const T* projected;  // fn x, [tokens, outputs]
  const T* r;          // [tokens]
  const T* scale;      // [3]
  const T* base;       // [outputs]
};

// pre, post [tokens, n], comb [tokens, n, n].
template <class T>
void mix_forward(const MixShape& shape, int64_t tokens, const MixValues<T>& in, T* pre, T* post, T* comb);

// Writes dprojected [tokens, outputs] and dr [tokens], adds to sums [3 + outputs]: the gradients of scale, then of base.
template <class T>
void mix_backward(const MixShape& shape, int64_t tokens, const MixValues<T>& in, const T* dpre, const T* dpost, const T* dcomb,
                  T* dprojected, T* dr, double* sums);

}  // namespace hyperparallel::kernels::mhc
