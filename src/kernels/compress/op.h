// The compressor of CSA2: groups of `ratio` consecutive tokens of one document become one latent. Rules: docs/model.md,
// Attention.
//
//   pool(u, g)[group, c] = sum_t softmax_t(g[group, t, c]) * u[group, t, c]      t over the group's tokens, FP32
#pragma once

#include "base/aten.h"

namespace hyperparallel::kernels {

// values, gates [groups, ratio, channels] in the math type -> [groups, channels] in the math type.
at::Tensor pool_groups(const at::Tensor& values, const at::Tensor& gates);

}  // namespace hyperparallel::kernels
