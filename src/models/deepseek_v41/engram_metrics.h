// What a step's tokens do with the Engram tables, as metrics.
#pragma once

#include <vector>

#include "engine/executor.h"
#include "models/deepseek_v41/program.h"

namespace hyperparallel::models::deepseek_v41 {

// Different rows of the tables, over all Engram layers, that the tokens of a step look up; `inputs`: its micro-batches.
// Positions whose gate is shut (pictures, padding) look up nothing.
int64_t engram_hit_rows(const ModelInputs& names, const std::vector<engine::ValueMap>& inputs);

}  // namespace hyperparallel::models::deepseek_v41
