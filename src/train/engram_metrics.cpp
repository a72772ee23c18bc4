#include "train/engram_metrics.h"

#include <ATen/ATen.h>

namespace hyperparallel::train {

int64_t engram_hit_rows(const models::deepseek_v41::ModelInputs& names, const std::vector<engine::ValueMap>& inputs) {
  std::vector<at::Tensor> looked_up;  // [tokens, layers, columns]
  for (const engine::ValueMap& batch : inputs) {
    const at::Tensor real = batch.at(names.padding.index).logical_not().nonzero().flatten();
    looked_up.push_back(batch.at(names.engram_rows.index).index_select(0, real));
  }
  const at::Tensor rows = at::cat(looked_up);
  int64_t count = 0;
  for (int64_t layer = 0; layer < rows.size(1); ++layer) count += std::get<0>(at::_unique(rows.select(1, layer))).numel();
  return count;
}

}  // namespace hyperparallel::train
