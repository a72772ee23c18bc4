// Work over the elements of many tensors: fixed-size chunks, so that what a chunk computes does not depend on the thread count,
// and one parallel loop over the chunks of all tensors, so that small tensors cost no thread start each.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <span>
#include <vector>

#include "base/error.h"
#include "optim/optimizer.h"

namespace hyperparallel::optim {

struct Chunk {
  size_t tensor;  // index into the list of parameters
  int64_t begin;  // elements
  int64_t size;
};

inline constexpr int64_t kChunkElements = 16384;

// The chunks of all gradients that are defined, in order.
inline std::vector<Chunk> chunks_of_gradients(std::span<const OptimizedParameter> parameters) {
  std::vector<Chunk> chunks;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].gradient.defined()) continue;
    const int64_t elements = parameters[i].gradient.numel();
    for (int64_t begin = 0; begin < elements; begin += kChunkElements) {
      chunks.push_back({i, begin, std::min(kChunkElements, elements - begin)});
    }
  }
  return chunks;
}

// Calls body(chunk, index of the chunk), on several threads.
template <class Body>
void for_each_chunk(const std::vector<Chunk>& chunks, const Body& body) {
  at::parallel_for(0, static_cast<int64_t>(chunks.size()), /*grain_size=*/1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) body(chunks[i], static_cast<size_t>(i));
  });
}

inline void check_parameter(const OptimizedParameter& parameter) {
  const at::Tensor& value = parameter.value;
  const at::Tensor& gradient = parameter.gradient;
  if (parameter.table != nullptr) {
    HP_CHECK(gradient.is_contiguous() && gradient.dim() == 2 && gradient.size(0) == parameter.rows.size(0) &&
                 gradient.size(1) == parameter.table->width() && gradient.scalar_type() == parameter.table->type(),
             "the gradient of `{}` does not fit its rows", parameter.name);
    return;
  }
  HP_CHECK(value.is_contiguous() && gradient.is_contiguous(), "`{}` is not contiguous", parameter.name);
  HP_CHECK(value.sizes() == gradient.sizes() && value.scalar_type() == gradient.scalar_type(),
           "the gradient of `{}` differs from it in shape or dtype", parameter.name);
}

// That an optimizer made with `entries`, which have a name each, is given the same parameters.
template <class Entries>
void check_same(std::span<const OptimizedParameter> parameters, const Entries& entries) {
  HP_CHECK(parameters.size() == entries.size(), "{} parameters, the optimizer was made for {}", parameters.size(),
           entries.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    HP_CHECK(parameters[i].name == entries[i].name, "parameter {} is `{}`, the optimizer was made for `{}`", i,
             parameters[i].name, entries[i].name);
  }
}

}  // namespace hyperparallel::optim
