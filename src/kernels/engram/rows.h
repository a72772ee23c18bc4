// The Engram gate over rows of tokens: the loops of cpu.cpp. op.h has the formulas. S is how numbers lie in memory
// (kernels/storage.h), T the math type.
#pragma once

#include <cstdint>

namespace hyperparallel::kernels::engram {

// What backward needs of a token and stream.
template <class T>
struct Sums {
  T dot, x_factor, key_factor, gate;  // the two factors are 1 / rms
};

// streams, out [tokens, n, d]; kv [tokens, (n + 1) d]: keys by stream, then the value; gain [n, d], q_weight k_weight; sums
// [tokens, n].
template <class S, class T>
void forward(int64_t tokens, int64_t n, int64_t d, double eps, const S* streams, const S* kv, const T* gain, const bool* closed,
             S* out, Sums<T>* sums);

// From dout [tokens, n, d]: dstreams, dkv; adds to dgain [n, d].
template <class S, class T>
void backward(int64_t tokens, int64_t n, int64_t d, const S* streams, const S* kv, const T* gain, const bool* closed,
              const Sums<T>* sums, const S* dout, S* dstreams, S* dkv, T* dgain);

}  // namespace hyperparallel::kernels::engram
