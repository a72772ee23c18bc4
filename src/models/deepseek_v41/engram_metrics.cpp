#include "models/deepseek_v41/engram_metrics.h"

#include "base/aten.h"

namespace hyperparallel::models::deepseek_v41 {

int64_t engram_hit_rows(const ModelInputs& names, const std::vector<engine::ValueMap>& inputs) {
  int64_t count = 0;
  for (const auto& layer : names.engram) {
    std::vector<at::Tensor> rows;
    for (const engine::ValueMap& batch : inputs) rows.push_back(batch.at(layer.rows.index));
    count += rows.size() == 1 ? rows[0].numel() : std::get<0>(at::_unique(at::cat(rows))).numel();
  }
  return count;
}

}  // namespace hyperparallel::models::deepseek_v41
