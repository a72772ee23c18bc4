#include "optim/clip.h"

#include <cmath>

#include "optim/chunks.h"
#include "optim/vector_kernels.h"

namespace hyperparallel::optim {
namespace {

double chunk_squares(const at::Tensor& gradient, const Chunk& chunk) {
  if (gradient.scalar_type() == at::kFloat) return sum_of_squares(chunk.size, gradient.const_data_ptr<float>() + chunk.begin);
  return sum_of_squares(chunk.size, gradient.const_data_ptr<double>() + chunk.begin);
}

NonFiniteGradient describe_non_finite(const OptimizedParameter& parameter) {
  const at::Tensor places = at::nonzero(at::isfinite(parameter.gradient.reshape({-1})).logical_not());
  int64_t first = places.size(0) > 0 ? places[0][0].item<int64_t>() : 0;
  if (parameter.table != nullptr && places.size(0) > 0) {
    const int64_t width = parameter.table->width();
    first = parameter.rows[first / width].item<int64_t>() * width + first % width;
  }
  return {parameter.name, places.size(0), first};
}

}  // namespace

double GradientNorm::norm() const {
  return std::sqrt(squared);
}

GradientNorm gradient_norm(std::span<const OptimizedParameter> parameters) {
  for (const OptimizedParameter& parameter : parameters) {
    if (parameter.gradient.defined()) check_parameter(parameter);
  }
  const std::vector<Chunk> chunks = chunks_of_gradients(parameters);
  std::vector<double> squares(chunks.size());
  for_each_chunk(chunks, [&](const Chunk& chunk, size_t index) {
    squares[index] = chunk_squares(parameters[chunk.tensor].gradient, chunk);
  });

  GradientNorm result;
  std::vector<double> per_tensor(parameters.size());
  for (size_t i = 0; i < chunks.size(); ++i) per_tensor[chunks[i].tensor] += squares[i];
  for (size_t i = 0; i < parameters.size(); ++i) {
    result.squared += per_tensor[i];
    if (!std::isfinite(per_tensor[i])) result.non_finite.push_back(describe_non_finite(parameters[i]));
  }
  return result;
}

double clip_coefficient(double norm, double max_norm) {
  return max_norm == 0 ? 1 : std::min(1.0, max_norm / (norm + 1e-6));
}

}  // namespace hyperparallel::optim
