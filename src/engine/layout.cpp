#include "engine/layout.h"

#include "base/error.h"
#include "engine/parameter.h"

namespace hyperparallel::engine {

std::vector<int64_t> even_parts(int64_t total, int64_t parts) {
  std::vector<int64_t> sizes(parts, total / parts);
  for (int64_t i = 0; i < total % parts; ++i) ++sizes[i];
  return sizes;
}

int64_t part_begin(int64_t total, int64_t parts, int64_t which) {
  return which * (total / parts) + std::min(which, total % parts);
}

bool Layout::is_primary(const ParameterSpec& spec) const {
  if (spec.cut_axis == "ep" || spec.use == ParameterUse::kTable) return true;
  if (spec.use == ParameterUse::kState) return coordinate("fsdp") == 0 && coordinate("tp") == 0;
  return coordinate("fsdp_replicate") == 0 && (spec.cut_axis == "tp" || coordinate("tp") == 0);
}

std::string shard_axis(const ParameterSpec& spec) {
  return spec.cut_axis == "ep" ? "edp" : "fsdp_shard";
}

int64_t shard_dim(const ParameterSpec& spec, const Layout& layout) {
  if (spec.shape.size() < 3) return 0;
  const int64_t stacked = spec.cut_dim == 0 && !spec.cut_axis.empty() ? layout.part(spec.shape[0], spec.cut_axis) : spec.shape[0];
  return stacked < layout.size(shard_axis(spec)) ? 1 : 0;
}

ParameterPlacement place(const ParameterSpec& spec, const Layout& layout) {
  ParameterPlacement placement;
  placement.part = {std::vector<int64_t>(spec.shape.size(), 0), spec.shape};
  if (!spec.cut_axis.empty()) {
    HP_CHECK(spec.cut_dim < static_cast<int64_t>(spec.shape.size()), "{} is cut along dimension {}", spec.name, spec.cut_dim);
    placement.part.offset[spec.cut_dim] = layout.begin(spec.shape[spec.cut_dim], spec.cut_axis);
    placement.part.size[spec.cut_dim] = layout.part(spec.shape[spec.cut_dim], spec.cut_axis);
  }
  placement.owned = placement.part;
  if (!spec.travels()) return placement;
  const std::string axis = shard_axis(spec);
  const int64_t dim = placement.shard_dim = shard_dim(spec, layout);
  const int64_t rows = placement.part.size[dim];
  placement.shard_rows = even_parts(rows, layout.size(axis));
  placement.owned.offset[dim] += layout.begin(rows, axis);
  placement.owned.size[dim] = layout.part(rows, axis);
  return placement;
}

}  // namespace hyperparallel::engine
