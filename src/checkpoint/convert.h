// Between our checkpoints and Hugging Face folders.
//
// NOTE [What of a checkpoint is the model]: tensors whose name has no `/` are the model's parameters, under our names
// (hf_names.h); all else, as optimizer states, is saved as `optimizer/exp_avg/model.embed.weight`. The document config.json is
// the model's configuration in Hugging Face form; documents named like its companion files (kHfCompanions) go with it.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "checkpoint/checkpoint.h"
#include "checkpoint/hf_folder.h"
#include "checkpoint/store.h"

namespace hyperparallel::checkpoint {

inline constexpr const char* kModelConfigDocument = "config.json";

// Companion files (kHfCompanions) found in a folder, by name.
std::map<std::string, std::string> read_companions(const std::filesystem::path& folder);

// Saves the folder's weights, dtypes unchanged, and its companions as step 0.
void import_hf(const HfFolder& source, CheckpointStore& target);

struct ExportOptions {
  at::ScalarType type = at::kBFloat16;  // of floating tensors; those of is_float32() stay FP32
  Spelling spelling = Spelling::kTransformers;
  int64_t max_shard_bytes = 5'000'000'000;
  std::map<std::string, std::string> companions;  // besides those in the checkpoint, and before them
};

// Writes the model of a checkpoint as a new Hugging Face folder. Its config.json says the dtype of the weights, and that there
// are no draft layers: checkpoints hold none. Throws CheckpointError.
void export_checkpoint(const Checkpoint& source, const std::filesystem::path& folder, const ExportOptions& options);

}  // namespace hyperparallel::checkpoint
