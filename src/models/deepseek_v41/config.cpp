#include "models/deepseek_v41/config.h"

#include <algorithm>

#include "base/error.h"

namespace hyperparallel::models::deepseek_v41 {
namespace {

int64_t nearest_at_or_before(const std::vector<int64_t>& ids, int64_t layer) {
  auto after = std::upper_bound(ids.begin(), ids.end(), layer);
  HP_CHECK(after != ids.begin(), "layer {} has no source at or before it", layer);
  return *std::prev(after);
}

}  // namespace

bool TextConfig::is_kv_source(int64_t layer) const {
  return std::binary_search(kv_source_layer_ids.begin(), kv_source_layer_ids.end(), layer);
}

bool TextConfig::is_index_source(int64_t layer) const {
  return std::binary_search(index_source_layer_ids.begin(), index_source_layer_ids.end(), layer);
}

LayerMode TextConfig::mode(int64_t layer) const {
  if (ratio(layer) == 0) return LayerMode::kWindow;
  if (is_kv_source(layer)) return LayerMode::kFull;
  return is_index_source(layer) ? LayerMode::kReindex : LayerMode::kReuse;
}

int64_t TextConfig::kv_source(int64_t layer) const {
  HP_CHECK(ratio(layer) > 0, "layer {} has ratio 0", layer);
  return nearest_at_or_before(kv_source_layer_ids, layer);
}

int64_t TextConfig::index_source(int64_t layer) const {
  HP_CHECK(ratio(layer) > 0, "layer {} has ratio 0", layer);
  return nearest_at_or_before(index_source_layer_ids, layer);
}

std::optional<int64_t> TextConfig::engram_index(int64_t layer) const {
  auto found = std::find(engram_layer_ids.begin(), engram_layer_ids.end(), layer);
  return found == engram_layer_ids.end() ? std::nullopt : std::optional<int64_t>(found - engram_layer_ids.begin());
}

}  // namespace hyperparallel::models::deepseek_v41
