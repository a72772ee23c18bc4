#include "kernels/mhc/coefficients.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "base/vectorise.h"
#include "kernels/vectors.h"

namespace hyperparallel::kernels::mhc {
namespace {

constexpr int kLanes = 16;  // tokens side by side

// Which of the three parts (pre, post, comb) an output belongs to.
HP_INLINE int64_t part_of(int64_t output, int64_t n) {
  return output < n ? 0 : output < 2 * n ? 1 : 2;
}

// A block of up to kLanes tokens: every array is [.., kLanes]. In FP64 for FP32 tensors too: the gradients of a normalisation
// nearly cancel, and their sums over tokens still more.
struct Block {
  MixShape shape;
  int64_t normalisations;        // 1 + 2 (iterations - 1); even ones over sources, odd ones over destinations
  std::vector<double> m;         // [outputs]  projected * r
  std::vector<double> z;         // [outputs]  m * scale + base, then its sigmoid or softmax
  std::vector<double> matrices;  // [normalisations + 1, n, n]  before the first and after each
  std::vector<double> factors;   // [normalisations, n]  1 / (sum + eps)
  std::vector<double> dz;        // [outputs]

  explicit Block(const MixShape& s)
      : shape(s),
        normalisations(1 + 2 * (s.iterations - 1)),
        m(s.outputs() * kLanes),
        z(s.outputs() * kLanes),
        matrices((normalisations + 1) * s.n * s.n * kLanes),
        factors(normalisations * s.n * kLanes),
        dz(s.outputs() * kLanes) {}

  double* matrix(int64_t which) { return matrices.data() + which * shape.n * shape.n * kLanes; }
};

HP_INLINE void sigmoid_rows(double* z, int64_t rows) {
  for (int64_t i = 0; i < rows * kLanes; ++i) z[i] = 1.0 / (1.0 + std::exp(-z[i]));
}

// Softmax of n rows of kLanes.
HP_INLINE void softmax_rows(double* z, int64_t n) {
  double most[kLanes], sum[kLanes] = {};
  for (int l = 0; l < kLanes; ++l) most[l] = z[l];
  for (int64_t j = 1; j < n; ++j)
    for (int l = 0; l < kLanes; ++l) most[l] = z[j * kLanes + l] > most[l] ? z[j * kLanes + l] : most[l];
  for (int64_t j = 0; j < n; ++j) {
    for (int l = 0; l < kLanes; ++l) z[j * kLanes + l] = std::exp(z[j * kLanes + l] - most[l]);
    for (int l = 0; l < kLanes; ++l) sum[l] += z[j * kLanes + l];
  }
  for (int l = 0; l < kLanes; ++l) sum[l] = 1.0 / sum[l];
  for (int64_t j = 0; j < n; ++j)
    for (int l = 0; l < kLanes; ++l) z[j * kLanes + l] *= sum[l];
}

// Fills m, z and the iterates of tokens `first` .. `first + count`.
template <class T>
HP_INLINE void compute(Block& block, const MixValues<T>& in, int64_t first, int64_t count) {
  const int64_t n = block.shape.n, outputs = block.shape.outputs();
  const double eps = block.shape.hc_eps;
  for (int64_t o = 0; o < outputs; ++o) {
    double* m = block.m.data() + o * kLanes;
    double* z = block.z.data() + o * kLanes;
    for (int64_t l = 0; l < kLanes; ++l)
      m[l] = l < count ? double(in.projected[(first + l) * outputs + o]) * double(in.r[first + l]) : 0.0;
    const double scale = in.scale[part_of(o, n)], base = in.base[o];
    for (int l = 0; l < kLanes; ++l) z[l] = m[l] * scale + base;
  }
  sigmoid_rows(block.z.data(), 2 * n);
  double* comb = block.z.data() + 2 * n * kLanes;
  for (int64_t s = 0; s < n; ++s) softmax_rows(comb + s * n * kLanes, n);
  double* to = block.matrix(0);
  for (int64_t i = 0; i < n * n * kLanes; ++i) to[i] = comb[i] + eps;
  for (int64_t k = 0; k < block.normalisations; ++k) {
    const double* from = block.matrix(k);
    double* out = block.matrix(k + 1);
    const int64_t kept = k % 2 == 0 ? 1 : n, summed = k % 2 == 0 ? n : 1;  // strides: even ones sum over sources
    for (int64_t a = 0; a < n; ++a) {
      double* factor = block.factors.data() + (k * n + a) * kLanes;
      double sum[kLanes];
      for (int l = 0; l < kLanes; ++l) sum[l] = from[a * kept * kLanes + l];
      for (int64_t b = 1; b < n; ++b)
        for (int l = 0; l < kLanes; ++l) sum[l] += from[(a * kept + b * summed) * kLanes + l];
      for (int l = 0; l < kLanes; ++l) factor[l] = 1.0 / (sum[l] + eps);
      for (int64_t b = 0; b < n; ++b) {
        const int64_t at = (a * kept + b * summed) * kLanes;
        for (int l = 0; l < kLanes; ++l) out[at + l] = from[at + l] * factor[l];
      }
    }
  }
}

// y = x / (sum x + eps) along one axis: dx = (dy - sum(dy y)) / (sum x + eps).
HP_INLINE void normalisation_backward(Block& block, int64_t k, double* dz) {
  const int64_t n = block.shape.n, kept = k % 2 == 0 ? 1 : n, summed = k % 2 == 0 ? n : 1;
  const double* y = block.matrix(k + 1);
  for (int64_t a = 0; a < n; ++a) {
    const double* factor = block.factors.data() + (k * n + a) * kLanes;
    double along[kLanes] = {};
    for (int64_t b = 0; b < n; ++b) {
      const int64_t at = (a * kept + b * summed) * kLanes;
      for (int l = 0; l < kLanes; ++l) along[l] += dz[at + l] * y[at + l];
    }
    for (int64_t b = 0; b < n; ++b) {
      const int64_t at = (a * kept + b * summed) * kLanes;
      for (int l = 0; l < kLanes; ++l) dz[at + l] = (dz[at + l] - along[l]) * factor[l];
    }
  }
}

// From the gradients of pre, post, comb in block.dz to those of z, in place.
HP_INLINE void differentiate(Block& block) {
  const int64_t n = block.shape.n;
  double* dz = block.dz.data();
  const double* z = block.z.data();
  for (int64_t i = 0; i < n * kLanes; ++i) dz[i] *= z[i] * (1.0 - z[i]);
  for (int64_t i = n * kLanes; i < 2 * n * kLanes; ++i) dz[i] *= 2.0 * z[i] * (1.0 - z[i]);
  double* dcomb = dz + 2 * n * kLanes;
  const double* soft = z + 2 * n * kLanes;
  for (int64_t k = block.normalisations; k-- > 0;) normalisation_backward(block, k, dcomb);
  for (int64_t s = 0; s < n; ++s) {
    double along[kLanes] = {};
    for (int64_t j = 0; j < n; ++j)
      for (int l = 0; l < kLanes; ++l) along[l] += dcomb[(s * n + j) * kLanes + l] * soft[(s * n + j) * kLanes + l];
    for (int64_t j = 0; j < n; ++j) {
      const int64_t at = (s * n + j) * kLanes;
      for (int l = 0; l < kLanes; ++l) dcomb[at + l] = soft[at + l] * (dcomb[at + l] - along[l]);
    }
  }
}

}  // namespace

template <class T>
void inverse_rms(int64_t tokens, int64_t width, double eps, const T* x, T* out) {
  vectorise([&]() __attribute__((always_inline)) {
    for (int64_t t = 0; t < tokens; ++t) {
      const T* row = x + t * width;
      T lanes[kLanes] = {};
      int64_t i = 0;
      for (; i + kLanes <= width; i += kLanes)
        for (int l = 0; l < kLanes; ++l) lanes[l] += row[i + l] * row[i + l];
      for (int l = 0; i < width; ++i, ++l) lanes[l] += row[i] * row[i];
      for (int half = kLanes / 2; half > 0; half /= 2)
        for (int l = 0; l < half; ++l) lanes[l] += lanes[l + half];
      out[t] = T(1) / std::sqrt(lanes[0] / T(width) + T(eps));
    }
  });
}

template <class T>
void add_inverse_rms_gradient(int64_t tokens, int64_t width, const T* x, const T* r, const T* dr, T* dx) {
  vectorise([&]() __attribute__((always_inline)) {
    for (int64_t t = 0; t < tokens; ++t) {
      const T factor = dr[t] * r[t] * r[t] * r[t] / T(width);
      const T* __restrict from = x + t * width;
      T* __restrict to = dx + t * width;
      for (int64_t i = 0; i < width; ++i) to[i] -= factor * from[i];
    }
  });
}

template <class T>
void mix_forward(const MixShape& shape, int64_t tokens, const MixValues<T>& in, T* pre, T* post, T* comb) {
  Block block(shape);
  const int64_t n = shape.n;
  vectorise([&]() __attribute__((always_inline)) {
    for (int64_t first = 0; first < tokens; first += kLanes) {
      const int64_t count = std::min<int64_t>(kLanes, tokens - first);
      compute(block, in, first, count);
      const double* z = block.z.data();
      const double* last = block.matrix(block.normalisations);
      for (int64_t l = 0; l < count; ++l) {
        const int64_t t = first + l;
        for (int64_t k = 0; k < n; ++k) pre[t * n + k] = T(z[k * kLanes + l] + shape.hc_eps);
        for (int64_t k = 0; k < n; ++k) post[t * n + k] = T(2.0 * z[(n + k) * kLanes + l]);
        for (int64_t k = 0; k < n * n; ++k) comb[t * n * n + k] = T(last[k * kLanes + l]);
      }
    }
  });
}

template <class T>
void mix_backward(const MixShape& shape, int64_t tokens, const MixValues<T>& in, const T* dpre, const T* dpost, const T* dcomb,
                  T* dprojected, T* dr, double* sums) {
  Block block(shape);
  const int64_t n = shape.n, outputs = shape.outputs();
  vectorise([&]() __attribute__((always_inline)) {
    for (int64_t first = 0; first < tokens; first += kLanes) {
      const int64_t count = std::min<int64_t>(kLanes, tokens - first);
      compute(block, in, first, count);
      std::fill(block.dz.begin(), block.dz.end(), 0.0);
      for (int64_t l = 0; l < count; ++l) {
        const int64_t t = first + l;
        for (int64_t k = 0; k < n; ++k) block.dz[k * kLanes + l] = dpre[t * n + k];
        for (int64_t k = 0; k < n; ++k) block.dz[(n + k) * kLanes + l] = dpost[t * n + k];
        for (int64_t k = 0; k < n * n; ++k) block.dz[(2 * n + k) * kLanes + l] = dcomb[t * n * n + k];
      }
      differentiate(block);
      double inverse[kLanes] = {};
      for (int64_t o = 0; o < outputs; ++o) {
        const int64_t part = part_of(o, n);
        const double scale = in.scale[part];
        const double* m = block.m.data() + o * kLanes;
        const double* dz = block.dz.data() + o * kLanes;
        double scale_sum = 0, base_sum = 0;
        for (int l = 0; l < kLanes; ++l) scale_sum += dz[l] * m[l];
        for (int l = 0; l < kLanes; ++l) base_sum += dz[l];
        sums[part] += scale_sum;
        sums[3 + o] += base_sum;
        for (int64_t l = 0; l < count; ++l) {
          const int64_t at = (first + l) * outputs + o;
          const double dm = dz[l] * scale;
          inverse[l] += dm * in.projected[at];
          dprojected[at] = T(dm * in.r[first + l]);
        }
      }
      for (int64_t l = 0; l < count; ++l) dr[first + l] = T(inverse[l]);
    }
  });
}

#define HP_INSTANTIATE(T)                                                                        \
  template void inverse_rms<T>(int64_t, int64_t, double, const T*, T*);                          \
  template void add_inverse_rms_gradient<T>(int64_t, int64_t, const T*, const T*, const T*, T*); \
  template void mix_forward<T>(const MixShape&, int64_t, const MixValues<T>&, T*, T*, T*);       \
  template void mix_backward<T>(const MixShape&, int64_t, const MixValues<T>&, const T*, const T*, const T*, T*, T*, double*);
HP_INSTANTIATE(float)
HP_INSTANTIATE(double)

}  // namespace hyperparallel::kernels::mhc
