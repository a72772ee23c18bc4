// Released tensor names of our parameters. Experts are stacked in memory, `...ffn.experts.w1.weight` [experts, out, in], and single in
// files, `...ffn.experts.0.w1.weight` [out, in]; every other parameter has its released name and shape.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "engine/parameter.h"

namespace hyperparallel::models::deepseek_v41 {

struct ReleasedTensor {
  std::string name;
  at::Tensor tensor;  // a view of the given tensor
};

// The files' tensors of one parameter: `tensor` has the parameter's shape (a master, a gradient, a moment).
std::vector<ReleasedTensor> released_tensors(const engine::ParameterSpec& spec, const at::Tensor& tensor);

}  // namespace hyperparallel::models::deepseek_v41
