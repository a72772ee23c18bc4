// The JSON of Hugging Face folders that the weights depend on: config.json's tie and the index of shards.
#pragma once

#include <filesystem>
#include <map>
#include <string>

namespace hyperparallel::checkpoint {

inline constexpr const char* kIndexFile = "model.safetensors.index.json";
inline constexpr const char* kSingleFile = "model.safetensors";

// tie_word_embeddings of a config's text, at the top or in text_config; absent means false. `path` names it in errors.
bool ties_embeddings(const std::string& config, const std::filesystem::path& path);

// weight_map of an index: tensor name -> file, a plain name in the same folder. Throws CheckpointError.
std::map<std::string, std::string> read_weight_map(const std::filesystem::path& index);

// Text of an index. total_bytes is the sum of the tensors' bytes, as other tools expect it, not of the files'.
std::string index_text(const std::map<std::string, std::string>& weight_map, int64_t total_bytes, int64_t total_parameters);

}  // namespace hyperparallel::checkpoint
