// Boxes: axis-aligned parts of a row-major tensor, given by the offset and size of every dimension.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace hyperparallel {

struct Box {
  std::vector<int64_t> offset, size;
  bool operator==(const Box&) const = default;
};

int64_t volume(const std::vector<int64_t>& size);  // 1 for a scalar

// The common part of two boxes of one tensor; none when they share no element.
std::optional<Box> intersect(const Box& a, const Box& b);

// Where a box lies: it begins at `offset` in the row-major tensor of `shape` at `data`.
template <class Byte>
struct BoxPlace {
  Byte* data;
  std::vector<int64_t> shape, offset;
};

// Copies `size` elements per dimension, `element_bytes` each, from one place to another. Rows need no alignment.
void copy_box(const std::vector<int64_t>& size, int64_t element_bytes, BoxPlace<const uint8_t> from, BoxPlace<uint8_t> to);

}  // namespace hyperparallel
