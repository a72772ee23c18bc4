// The vocabulary's softmax over rows of logits in memory: the loops of linear_cross_entropy (engine/weight.h). S is float, double
// or Bfloat16Bits, T its math type.
#pragma once

#include <cstdint>

#include "kernels/storage.h"

namespace hyperparallel::kernels::cross_entropy {

// out[r] = log(sum over words of exp(logits[r])); logits [rows, words].
template <class S, class T>
void log_sums(int64_t rows, int64_t words, const S* logits, T* out);

// Turns logits into gradients: factors[r] exp(logits[r] - log_sums[r]), and 1 less at targets[r], -1 where it is not here.
template <class S, class T>
void derive(int64_t rows, int64_t words, const T* log_sums, const T* factors, const int64_t* targets, S* logits);

}  // namespace hyperparallel::kernels::cross_entropy
