// FLOPs that a micro-batch needs, for MFU (NOTE [MFU] in train/metrics.h).
#pragma once

#include "data/batch.h"
#include "models/deepseek_v41/config.h"

namespace hyperparallel::models::deepseek_v41 {

// Forward and backward (twice the forward) of the products with the weights that are active for each token, and of attention over
// the keys each token may see; the indexer's scores forward only; the head for supervised tokens only. Padding and recomputation
// do not count.
double needed_flops(const ModelConfig& config, const data::MicroBatch& batch);

}  // namespace hyperparallel::models::deepseek_v41
