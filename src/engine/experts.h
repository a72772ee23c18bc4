// A layer's experts in one operation (kernels/moe/mega.h), with weights as segments see them (weight.h).
#pragma once

#include <optional>
#include <string>

#include "dist/group.h"
#include "engine/weight.h"

namespace hyperparallel::engine {

struct ExpertWeights {
  Weight w1, w3, w2;  // [experts, width, d] twice, [experts, d, width]; of one expert also without the first dimension
};

// Experts that lie over a mesh axis, in even parts. Rows travel in the plan of tasks itself (kernels/moe/mega.h), NOTE [Overlap].
struct ExpertRanks {
  dist::Group* group;
  at::Tensor counts;  // int64 [ranks, own experts]: rows of each rank for each expert of this one
  std::string label;
  double* waited;  // gets the seconds for which this rank had nothing else to do; outlives the backward
};

// Rows sorted by expert: row r is the choice order[r] = token * k + place (kernels::sort_rows).
struct RoutedExperts {
  at::Tensor order;    // int64 [tokens * k]
  at::Tensor offsets;  // int64 [all experts + 1]
  at::Tensor weights;  // [tokens * k] in the math type
  int64_t k = 1;
  ExpertWeights experts;
  std::optional<ExpertRanks> ranks = {};  // where experts lie over an axis; else all are here
};

// x [tokens, d] -> [tokens, d] in x's type: the sum over each token's rows and of the shared expert, each where it is there.
// Differentiable in x and the rows' weights; the gradients of expert weights go to their slots. Where experts lie over an axis,
// all its ranks call this, and its backward, alike.
at::Tensor expert_layer(const at::Tensor& x, const std::optional<RoutedExperts>& routed,
                        const std::optional<ExpertWeights>& shared, double limit);

}  // namespace hyperparallel::engine
