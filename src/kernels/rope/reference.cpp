#include <cmath>
#include <numbers>

#include "base/error.h"
#include "kernels/rope/op.h"
#include "kernels/types.h"

namespace hyperparallel::kernels {

std::vector<double> rope_frequencies(int64_t dim, double theta) {
  std::vector<double> frequencies;
  for (int64_t i = 0; i < dim / 2; ++i)
    frequencies.push_back(std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(dim)));
  return frequencies;
}

std::vector<double> yarn_frequencies(int64_t dim, double theta, double factor, double beta_fast, double beta_slow,
                                     int64_t original_max_position_embeddings) {
  const auto limit = [&](double rotations) {
    return static_cast<double>(dim) *
           std::log(static_cast<double>(original_max_position_embeddings) / (rotations * 2.0 * std::numbers::pi)) /
           (2.0 * std::log(theta));
  };
  const double low = std::max(std::floor(limit(beta_fast)), 0.0);
  double high = std::min(std::ceil(limit(beta_slow)), static_cast<double>(dim - 1));
  if (low == high) high += 0.001;
  std::vector<double> frequencies = rope_frequencies(dim, theta);
  for (size_t i = 0; i < frequencies.size(); ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    frequencies[i] = frequencies[i] / factor * ramp + frequencies[i] * (1.0 - ramp);
  }
  return frequencies;
}

RopeTable rope_table(const at::Tensor& positions, const std::vector<double>& frequencies, at::ScalarType math) {
  const at::Tensor angles = positions.to(math).unsqueeze(1) * at::tensor(frequencies, at::kDouble).to(at::kFloat).to(math);
  return {angles.cos(), angles.sin()};
}

at::Tensor apply_rope_reference(const at::Tensor& x, const RopeTable& table, bool inverse) {
  const int64_t dim = 2 * table.cos.size(1), channels = x.size(-1);
  HP_CHECK(dim <= channels && x.size(0) == table.cos.size(0), "rope of {} channels on [{}]", dim,
           fmt::join(x.sizes().vec(), ", "));
  std::vector<int64_t> shape(x.dim(), 1);
  shape.front() = x.size(0);
  shape.back() = dim / 2;
  const at::Tensor cos = table.cos.view(shape), sin = inverse ? table.sin.neg().view(shape) : table.sin.view(shape);
  const at::Tensor pairs = to_math(x.narrow(-1, channels - dim, dim)).unflatten(-1, {dim / 2, 2});
  const at::Tensor even = pairs.select(-1, 0), odd = pairs.select(-1, 1);
  const at::Tensor rotated = at::stack({even * cos - odd * sin, odd * cos + even * sin}, -1).flatten(-2).to(x.scalar_type());
  if (dim == channels) return rotated;
  return at::cat({x.narrow(-1, 0, channels - dim), rotated}, -1);
}

at::Tensor apply_rope_halves(const at::Tensor& x, const RopeTable& table) {
  const int64_t half = table.cos.size(1);
  HP_CHECK(2 * half == x.size(-1) && x.size(0) == table.cos.size(0), "rope of {} channels on [{}]", 2 * half,
           fmt::join(x.sizes().vec(), ", "));
  std::vector<int64_t> shape(x.dim(), 1);
  shape.front() = x.size(0);
  shape.back() = half;
  const at::Tensor cos = table.cos.view(shape), sin = table.sin.view(shape), wide = to_math(x);
  const at::Tensor low = wide.narrow(-1, 0, half), high = wide.narrow(-1, half, half);
  return at::cat({low * cos - high * sin, high * cos + low * sin}, -1).to(x.scalar_type());
}

}  // namespace hyperparallel::kernels
