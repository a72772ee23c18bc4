// A layer's experts in one operation (kernels/moe/mega.h), with weights as segments see them (weight.h).
#pragma once

#include <optional>

#include "engine/weight.h"

namespace hyperparallel::engine {

struct ExpertWeights {
  Weight w1, w3, w2;  // [experts, width, d] twice, [experts, d, width]; of one expert also without the first dimension
};

// Rows sorted by expert: row r is the choice order[r] = token * k + place (kernels::sort_rows).
struct RoutedExperts {
  at::Tensor order;    // int64 [tokens * k]
  at::Tensor offsets;  // int64 [experts + 1]
  at::Tensor weights;  // [tokens * k] in the math type
  int64_t k = 1;
  ExpertWeights experts;
};

// x [tokens, d] -> [tokens, d] in x's type: the sum over each token's rows and of the shared expert, each where it is there.
// Differentiable in x and the rows' weights; the gradients of expert weights go to their slots.
at::Tensor expert_layer(const at::Tensor& x, const std::optional<RoutedExperts>& routed,
                        const std::optional<ExpertWeights>& shared, double limit);

}  // namespace hyperparallel::engine
