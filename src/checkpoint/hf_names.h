// Names of model tensors: ours, and the two spellings of Hugging Face folders (docs/model.md, Tensor names). Pure functions.
//
// Ours are the `transformers` names, with the experts of a layer stacked: `model.layers.3.ffn.experts.w1.weight` [experts, I, D]
// is `model.layers.3.ffn.experts.{e}.w1.weight` [I, D] in a file. The released spelling has no `model.` and says `head.weight`.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace hyperparallel::checkpoint {

enum class Spelling { kTransformers, kReleased };

std::string to_transformers(const std::string& file_name);  // from either spelling; names known to neither stay
std::string to_released(const std::string& transformers_name);

struct ExpertName {
  std::string own;     // of the stacked tensor
  int64_t expert = 0;  // its row
};

// The stacked tensor and row that an expert's `transformers` name means; none for other names.
std::optional<ExpertName> parse_expert(const std::string& transformers_name);
bool is_stacked(const std::string& own_name);
std::string expert_name(const std::string& own_name, int64_t expert);  // `transformers` name of one row of a stacked tensor

bool is_draft(const std::string& name);    // `mtp.*`: draft layers
bool is_float32(const std::string& name);  // mHC, sinks, router biases: FP32 also in a BF16 folder

}  // namespace hyperparallel::checkpoint
