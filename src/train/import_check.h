// The check before a Hugging Face folder becomes a checkpoint.
#pragma once

#include "checkpoint/hf_folder.h"
#include "models/adapter/family.h"

namespace hyperparallel::train {

// That the folder has exactly the tensors of the model, in their shapes. Throws one CheckpointError that lists missing,
// unexpected and wrongly shaped tensors by our names (hf_names.h), the first ten of each.
void check_weights(const checkpoint::HfFolder& folder, const models::Architecture& architecture);

}  // namespace hyperparallel::train
