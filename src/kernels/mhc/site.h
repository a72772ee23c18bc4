// One site of mHC over a few tokens, whose streams stay on the chip: the loops of kernels/mhc/mega.cpp. op.h has the formulas.
//
// A tile keeps the streams of its tokens, widened to the math type T, in scratch memory; the streams in memory, of storage type
// S, are read and written once. Backward runs the coefficients again and keeps nothing but what forward got and made.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/mhc/coefficients.h"

namespace hyperparallel::kernels::mhc {

struct SiteShape {
  int64_t n, d;
  int64_t iterations;
  double rms_eps, hc_eps;

  MixShape mix() const { return {n, iterations, hc_eps}; }
  int64_t padded() const { return (d + 15) / 16 * 16; }  // numbers that a stream of a token takes in scratch memory, zeros last
  int64_t padded_width() const { return n * padded(); }
  // From a row of all streams to the next in scratch memory, of tokens and of matrices alike: widths are often powers of two, and
  // rows that lay so far apart would drive each other out of the cache.
  int64_t stride() const { return padded_width() + 16; }
  int64_t tokens() const;  // of a tile at most: 16, fewer where streams are wide
};

// What `expand` reads, from a tile's first token on.
template <class S, class T>
struct ExpandInput {
  const S* y;        // [tokens, d]
  const S* streams;  // [tokens, n, d]
  const T* post;     // [tokens, n]
  const T* comb;     // [tokens, n, n]
};

template <class T>
struct MixWeights {
  const T* fn;     // [outputs, stride]
  const T* scale;  // [3]
  const T* base;   // [outputs]
  const T* gain;   // [padded d], rounded to S
};

// What the coefficients are made of and what they are, from a tile's first token on.
template <class T>
struct MixRows {
  const T* given;  // [tokens, n]: `pre` of the site before, by which this one collapses
  T *projected, *r, *pre, *post, *comb;
};
template <class T>
struct MixGradients {
  const T *dpre, *dpost, *dcomb;
  T* dgiven;  // [tokens, n]
};
// Sums over tokens, to which a tile adds.
template <class T>
struct MixSums {
  T* dfn;           // [outputs, stride]
  T* dgain;         // [padded d]
  double* dscales;  // [3 + outputs]: scale, base
};

template <class S, class T>
class SiteTile {
 public:
  explicit SiteTile(const SiteShape& shape);

  // The tile's streams: as they lie in memory, or made (and written) from those of the site before.
  void read(int64_t tokens, const S* streams);
  void expand(int64_t tokens, const ExpandInput<S, T>& in, S* streams);
  // From these: coefficients, and the sublayer's input x [tokens, d].
  void mix(int64_t tokens, const MixWeights<T>& parameters, const MixRows<T>& rows, S* x);

  // The gradient of the tile's streams begins as this, or as zeros.
  void read_gradient(int64_t tokens, const S* dstreams);
  void clear_gradient() { std::fill(g_.begin(), g_.end(), T(0)); }
  // Adds what comes back through `mix`, of a tile that was `read`.
  void mix_backward(int64_t tokens, const MixWeights<T>& parameters, const MixRows<T>& rows, const MixGradients<T>& gradients,
                    const S* dx, const MixSums<T>& sums);
  // What comes back through `expand`: dy [tokens, d], dstreams [tokens, n, d], dpost [tokens, n], dcomb [tokens, n, n].
  void expand_backward(int64_t tokens, const ExpandInput<S, T>& in, S* dy, S* dstreams, T* dpost, T* dcomb);
  void write_gradient(int64_t tokens, S* dstreams);

 private:
  // body(token, stream)
  template <class Body>
  [[gnu::always_inline]] void over_rows(int64_t tokens, const Body& body) const {
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t k = 0; k < shape_.n; ++k) body(t, k);
  }
  T* row(std::vector<T>& of, int64_t token, int64_t stream = 0) const {
    return of.data() + token * shape_.stride() + stream * shape_.padded();
  }

  SiteShape shape_;
  std::vector<T> x_, g_;        // streams and their gradient, [tokens, stride]
  std::vector<T> y_, z_, old_;  // rows of one token: [padded], [padded], [n + 1, padded]
  std::vector<T> dprojected_, dr_;
};

}  // namespace hyperparallel::kernels::mhc
