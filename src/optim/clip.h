// Clipping by the global norm, and the check that every gradient is finite.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "optim/optimizer.h"

namespace hyperparallel::optim {

struct NonFiniteGradient {
  std::string name;
  int64_t count = 0;        // elements that are infinite or not a number
  int64_t first_index = 0;  // of the first, in row-major order
};

struct GradientNorm {
  double squared = 0;  // sum of squares over all gradients in FP64; ranks add theirs before the root
  std::vector<NonFiniteGradient> non_finite;

  double norm() const;
};

// L2 norm over all gradients that are defined, before clipping. The order of summation does not depend on the thread count.
GradientNorm gradient_norm(std::span<const OptimizedParameter> parameters);

// min(1, max_norm / (norm + 1e-6)); 1 when max_norm is 0 (no clipping). The optimizer multiplies every gradient by it.
double clip_coefficient(double norm, double max_norm);

}  // namespace hyperparallel::optim
