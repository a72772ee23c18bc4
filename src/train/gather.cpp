#include "train/gather.h"

#include <ATen/ops/constant_pad_nd.h>

#include "base/error.h"

namespace hyperparallel::train {

at::Tensor gather_rows(dist::Group& group, const at::Tensor& own, const std::vector<int64_t>& rows, const std::string& label) {
  HP_CHECK(own.dim() > 0 && own.size(0) == static_cast<int64_t>(rows.size()), "{}: {} rows for {} numbers", label, own.sizes()[0],
           rows.size());
  std::vector<int64_t> counts;
  int64_t width = 0;
  for (const auto& size : group.gather_counts({own.size(0), own.dim() == 2 ? own.size(1) : 0}, label + ".sizes")) {
    counts.push_back(size[0]);
    width = std::max(width, size[1]);
  }
  const bool is_short = own.dim() == 2 && own.size(1) < width && !own.is_floating_point();
  const at::Tensor wide = is_short ? at::constant_pad_nd(own, {0, width - own.size(1)}, -1) : own;
  const at::Tensor gathered = group.all_gather(wide, counts, label).wait();
  const at::Tensor order = group.all_gather(at::tensor(rows, at::kLong), counts, label + ".rows").wait();
  return at::empty_like(gathered).index_copy_(0, order, gathered);
}

at::Tensor gather_parameter(dist::Group& world, const engine::Layout& layout, const engine::ParameterSpec& spec,
                            const at::Tensor& owned) {
  std::vector<Box> boxes;
  std::vector<int64_t> sizes;
  for (int rank = 0; rank < world.size(); ++rank) {
    engine::Layout other = layout;
    other.rank = rank;
    boxes.push_back(engine::place(spec, other).owned);
    sizes.push_back(volume(boxes.back().size));
  }
  const at::Tensor all = world.all_gather(owned.reshape({-1}), sizes, spec.name).wait();
  at::Tensor whole = at::full(spec.shape, NAN, owned.options());
  int64_t first = 0;
  for (size_t rank = 0; rank < boxes.size(); first += sizes[rank], ++rank)
    engine::narrow_to(whole, boxes[rank]).copy_(all.narrow(0, first, sizes[rank]).view(boxes[rank].size));
  return whole;
}

}  // namespace hyperparallel::train
