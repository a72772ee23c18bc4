// Tensors for tests: reproducible values, comparisons that say where they fail, and gradients by autograd and by finite
// differences.
#pragma once

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include "base/aten.h"

#include <functional>
#include <string>
#include <vector>

#include "base/random.h"

namespace hyperparallel::test {

// Normal values that depend on the name alone.
inline at::Tensor normal(at::IntArrayRef sizes, const std::string& name, at::ScalarType type = at::kDouble, double std = 1.0) {
  at::Tensor values = at::empty(sizes, at::kFloat);
  fill_normal(values.mutable_data_ptr<float>(), values.numel(), 7, name, 0, std);
  return values.to(type);
}
// The same values behind strides that are not contiguous.
inline at::Tensor strided(const at::Tensor& values) {
  at::Tensor wide = at::zeros_like(at::cat({values, values}, -1));
  wide.slice(-1, 0, wide.size(-1), 2).copy_(values);
  return wide.slice(-1, 0, wide.size(-1), 2);
}
inline at::Tensor integers(const std::vector<int64_t>& values) {
  return at::tensor(values, at::kLong);
}

inline bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.defined() != b.defined()) return false;
  return !a.defined() || (a.scalar_type() == b.scalar_type() && a.sizes() == b.sizes() && at::equal(a, b));
}

// Largest |a - b| over the largest |b|.
inline double relative_error(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes()) return INFINITY;
  if (a.numel() == 0) return 0;
  const at::Tensor expected = b.to(at::kDouble);
  return (a.to(at::kDouble) - expected).abs().max().item<double>() / std::max(expected.abs().max().item<double>(), 1e-30);
}

#define EXPECT_SAME_BITS(a, b) EXPECT_TRUE(::hyperparallel::test::same_bits(a, b))
#define EXPECT_CLOSE(a, b, tolerance) EXPECT_LE(::hyperparallel::test::relative_error(a, b), tolerance)

using Tensors = std::vector<at::Tensor>;
using Function = std::function<at::Tensor(const Tensors&)>;

// d sum(f(inputs) * cotangent) / d inputs; zeros where f does not depend on one.
inline Tensors gradients(const Function& f, const Tensors& inputs, const at::Tensor& cotangent) {
  Tensors leaves;
  for (const at::Tensor& input : inputs) leaves.push_back(input.detach().requires_grad_(true));
  Tensors found = torch::autograd::grad({f(leaves)}, leaves, {cotangent}, std::nullopt, false, /*allow_unused=*/true);
  for (size_t i = 0; i < found.size(); ++i) {
    if (!found[i].defined()) found[i] = at::zeros_like(inputs[i]);
  }
  return found;
}

// Compares the gradient of every input with central differences along a random direction. Inputs are double.
inline void expect_finite_differences(const Function& f, const Tensors& inputs, double tolerance = 1e-6) {
  at::NoGradGuard no_grad;
  const at::Tensor cotangent = normal(f(inputs).sizes(), "cotangent");
  Tensors found;
  {
    at::AutoGradMode grad(true);
    found = gradients(f, inputs, cotangent);
  }
  const double step = 1e-5;
  for (size_t i = 0; i < inputs.size(); ++i) {
    const at::Tensor direction = normal(inputs[i].sizes(), "direction " + std::to_string(i));
    const auto objective = [&](double h) {
      Tensors moved = inputs;
      moved[i] = inputs[i] + h * direction;
      return (f(moved) * cotangent).sum().item<double>();
    };
    const double expected = (objective(step) - objective(-step)) / (2 * step),
                 derived = (found[i] * direction).sum().item<double>();
    EXPECT_NEAR(derived, expected, tolerance * std::max(1.0, std::abs(expected))) << "input " << i;
  }
}

// Runs `body` with that many threads.
template <class Body>
auto with_threads(int count, const Body& body) {
  const int before = at::get_num_threads();
  at::set_num_threads(count);
  auto result = body();
  at::set_num_threads(before);
  return result;
}

}  // namespace hyperparallel::test
