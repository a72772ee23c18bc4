#include "base/box.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>

#include "base/error.h"

namespace hyperparallel {

int64_t volume(const std::vector<int64_t>& size) {
  return std::accumulate(size.begin(), size.end(), int64_t{1}, std::multiplies<int64_t>());
}

std::optional<Box> intersect(const Box& a, const Box& b) {
  HP_CHECK(a.offset.size() == b.offset.size(), "boxes of {} and {} dimensions", a.offset.size(), b.offset.size());
  Box common;
  for (size_t d = 0; d < a.offset.size(); ++d) {
    int64_t begin = std::max(a.offset[d], b.offset[d]);
    int64_t end = std::min(a.offset[d] + a.size[d], b.offset[d] + b.size[d]);
    if (end <= begin) return std::nullopt;
    common.offset.push_back(begin);
    common.size.push_back(end - begin);
  }
  return common;
}

void copy_box(const std::vector<int64_t>& size, int64_t element_bytes, BoxPlace<const uint8_t> from, BoxPlace<uint8_t> to) {
  if (volume(size) == 0) return;
  // Dimensions from `inner` on are whole in both tensors, so they are copied as one run together with dimension inner - 1.
  size_t inner = size.size();
  int64_t run = element_bytes;
  while (inner > 0 && size[inner - 1] == from.shape[inner - 1] && size[inner - 1] == to.shape[inner - 1]) run *= size[--inner];
  if (inner > 0) run *= size[inner - 1];

  auto byte_offset = [&](const auto& place, const std::vector<int64_t>& index) {
    int64_t element = 0;
    for (size_t d = 0; d < size.size(); ++d) element = element * place.shape[d] + place.offset[d] + index[d];
    return element * element_bytes;
  };
  std::vector<int64_t> index(size.size(), 0);
  for (;;) {
    std::memcpy(to.data + byte_offset(to, index), from.data + byte_offset(from, index), static_cast<size_t>(run));
    size_t d = inner > 0 ? inner - 1 : 0;
    while (d > 0 && ++index[d - 1] == size[d - 1]) index[--d] = 0;
    if (d == 0) return;
  }
}

}  // namespace hyperparallel
