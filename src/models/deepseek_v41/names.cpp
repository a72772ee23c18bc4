#include "models/deepseek_v41/names.h"

namespace hyperparallel::models::deepseek_v41 {

std::vector<ReleasedTensor> released_tensors(const engine::ParameterSpec& spec, const at::Tensor& tensor) {
  static const std::string kStack = ".ffn.experts.";
  const size_t position = spec.name.find(kStack);
  if (position == std::string::npos) return {{spec.name, tensor}};
  const std::string before = spec.name.substr(0, position + kStack.size()), after = spec.name.substr(position + kStack.size());
  std::vector<ReleasedTensor> tensors;
  for (int64_t expert = 0; expert < tensor.size(0); ++expert) {
    tensors.push_back({before + std::to_string(expert) + "." + after, tensor[expert]});
  }
  return tensors;
}

}  // namespace hyperparallel::models::deepseek_v41
