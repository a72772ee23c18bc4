#include "optim/newton_schulz.h"

#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>

#include "base/error.h"

namespace hyperparallel::optim {

NewtonSchulzSteps deepseek_steps() {
  NewtonSchulzSteps steps(8, {3.4445, -4.7750, 2.0315});
  steps.resize(10, {2.0, -1.5, 0.5});
  return steps;
}

at::Tensor newton_schulz(const at::Tensor& n, const NewtonSchulzSteps& steps, double eps, at::ScalarType compute) {
  HP_CHECK(n.dim() == 3, "matrices of {} dimensions", n.dim());
  const bool is_tall = n.size(1) > n.size(2);  // the polynomial commutes with transposition
  at::Tensor x = (is_tall ? n.transpose(1, 2) : n).to(compute).contiguous();
  // Scaled by the largest element, so that squares neither overflow nor vanish.
  const at::Tensor largest = x.abs().amax({1, 2}, /*keepdim=*/true);
  const at::Tensor scale = at::where(largest == 0, at::ones_like(largest), largest);
  const at::Tensor norm = (x / scale).square().sum({1, 2}, /*keepdim=*/true).sqrt() * scale;
  x = x / (norm + eps);
  for (const auto& [a, b, c] : steps) {
    const at::Tensor square = at::bmm(x, x.transpose(1, 2));
    x = at::baddbmm(x, at::baddbmm(square, square, square, b, c), x, a);
  }
  return (is_tall ? x.transpose(1, 2) : x).to(n.scalar_type()).contiguous();
}

}  // namespace hyperparallel::optim
