// The router over rows of tokens: the loops of kernels/moe/gate.cpp. op.h has the formulas. T is float or double.
#pragma once

#include <cstdint>

namespace hyperparallel::kernels::moe {

struct GateShape {
  int64_t experts, k;
  double temperature, scale;
  bool normalise;
};

// From logits [tokens, experts]: scores [tokens, experts]; ids [tokens, k], rising, by score + bias (bias_vl where `image`),
// unless they are given; weights [tokens, k].
template <class T>
void gate_forward(const GateShape& shape, int64_t tokens, const T* logits, const T* bias, const T* bias_vl, const bool* image,
                  bool ids_are_given, T* scores, int64_t* ids, T* weights);

// dlogits [tokens, experts], from the gradients of scores and weights.
template <class T>
void gate_backward(const GateShape& shape, int64_t tokens, const T* logits, const T* scores, const int64_t* ids, const T* dscores,
                   const T* dweights, T* dlogits);

}  // namespace hyperparallel::kernels::moe
