#include "optim/optimizer.h"

#include <fmt/ranges.h>

#include "base/error.h"

namespace hyperparallel::optim {

void Optimizer::load_state(std::span<const StateTensor> given) {
  std::unordered_map<std::string, at::Tensor> own;
  for (const StateTensor& tensor : state()) {
    if (tensor.table == nullptr) own.emplace(tensor.name(), tensor.value);
  }
  for (const StateTensor& tensor : given) {
    if (tensor.table != nullptr) continue;
    auto found = own.find(tensor.name());
    if (found == own.end())
      throw CheckpointError("optimizer state `{}` is twice in the checkpoint or belongs to no parameter", tensor.name());
    if (found->second.sizes() != tensor.value.sizes()) {
      throw CheckpointError("optimizer state `{}` has shape [{}] in the checkpoint, but the parameter needs [{}]", tensor.name(),
                            fmt::join(tensor.value.sizes(), ", "), fmt::join(found->second.sizes(), ", "));
    }
    found->second.copy_(tensor.value);
    own.erase(found);
  }
  if (!own.empty())
    throw CheckpointError("the checkpoint lacks {} tensors of the optimizer's state, for example `{}`", own.size(),
                          own.begin()->first);
  on_loaded();
}

}  // namespace hyperparallel::optim
