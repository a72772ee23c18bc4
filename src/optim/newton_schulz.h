// The orthogonal factor of a matrix by Newton-Schulz iteration (Muon; DeepSeek-V4 report, Algorithm 1).
#pragma once

#include "base/aten.h"

#include <array>
#include <vector>

namespace hyperparallel::optim {

// X <- a X + (b A + c A A) X with A = X X^T, for each triple (a, b, c).
using NewtonSchulzSteps = std::vector<std::array<double, 3>>;
// Eight steps that raise all singular values near 1, two that settle them.
NewtonSchulzSteps deepseek_steps();

// X = N / (Frobenius norm of N + eps), then the steps, for each matrix of the batch alone. A zero matrix stays zero.
//   n  [matrices, rows, columns], FP32 or FP64; `compute` BF16: norm, division and products in BF16
// Returns the shape and type of n. The smaller of rows and columns is the side of A.
at::Tensor newton_schulz(const at::Tensor& n, const NewtonSchulzSteps& steps, double eps, at::ScalarType compute);

}  // namespace hyperparallel::optim
