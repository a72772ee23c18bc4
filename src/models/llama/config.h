// The configuration of a Llama decoder: the keys of a Hugging Face `config.json` of model_type llama, typed and checked.
#pragma once

#include <cstdint>
#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "models/adapter/family.h"

namespace hyperparallel::models::llama {

struct LlamaConfig {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t num_key_value_heads = 0;  // resolved: not given means num_attention_heads
  int64_t head_dim = 0;             // resolved: not given means hidden_size / num_attention_heads
  int64_t max_position_embeddings = 2048;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000.0;
  double initializer_range = 0.02;
  bool tie_word_embeddings = false;
  std::string dtype = "float32";                               // of the stored weights
  std::map<std::string, std::vector<int64_t>> special_tokens;  // bos_token_id and so on, as given: other tools read them
};

// `problems` and `unknown` as of Family::parse.
LlamaConfig parse_config(const yaml::Node& node, Problems& problems, yaml::MapReader::Unknown unknown,
                         const ParseOptions& options);
nlohmann::ordered_json to_json(const LlamaConfig& config);
std::vector<KeyDescription> describe_keys();

}  // namespace hyperparallel::models::llama
