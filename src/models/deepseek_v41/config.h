// The model configuration: the keys of a Hugging Face `config.json` of DeepSeek-V4.1, typed and checked, beside our own switches.
//
// Key names are those of the released file (docs/configuration.md lists them). Two spellings load: the composite form with
// `text_config` and `vision_config` inside (model_type deepseek_v41) and the flat text form (model_type deepseek_v41_text).
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/yaml.h"
#include "models/adapter/family.h"

namespace hyperparallel::models::deepseek_v41 {

// One rotary table: plain (`factor` 1) or YaRN (docs/model.md, Rotary positions).
struct RopeParameters {
  double theta = 10000.0;
  bool yarn = false;
  double factor = 1.0;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  int64_t original_max_position_embeddings = 65536;

  bool operator==(const RopeParameters&) const = default;
};

enum class LayerMode { kWindow, kFull, kReindex, kReuse };  // CSA2 roles: docs/model.md

// The DSpark draft layers (`dspark_*`): docs/model.md.
struct DraftConfig {
  int64_t block_size = 0;
  int64_t noise_token_id = 0;
  std::vector<int64_t> target_layer_ids;  // layers whose entering streams they read
  int64_t markov_rank = 0;
  int64_t n_routed_experts = 0;
  int64_t num_experts_per_tok = 0;

  bool operator==(const DraftConfig&) const = default;
};

struct TextConfig {
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t head_dim = 0;
  int64_t q_lora_rank = 0;
  int64_t qk_rope_head_dim = 0;
  int64_t o_groups = 0;
  int64_t o_lora_rank = 0;
  int64_t max_position_embeddings = 0;
  int64_t sliding_window = 0;
  RopeParameters rope_main;      // ratio-0 layers
  RopeParameters rope_compress;  // layers with ratio > 0
  double rms_norm_eps = 1e-20;
  double initializer_range = 0.02;
  bool tie_word_embeddings = false;
  int64_t bos_token_id = 0, eos_token_id = 1, pad_token_id = 2;

  std::vector<int64_t> compress_ratios;  // [num_hidden_layers (+ num_nextn_predict_layers)]
  std::vector<int64_t> kv_source_layer_ids;
  std::vector<int64_t> index_source_layer_ids;
  int64_t index_n_heads = 0, index_head_dim = 0, index_topk = 0;
  int64_t candidate_source_layer_id =
      -1;  // resolved: absent or null in the file means the last KV source; -1 switches the pool off
  int64_t candidate_topk_blocks = 0, candidate_block_size = 0;

  int64_t moe_intermediate_size = 0;
  int64_t n_routed_experts = 0;
  int64_t num_experts_per_tok = 0;
  double gate_temp = 1.0;
  bool norm_topk_prob = true;
  double routed_scaling_factor = 1.0;
  double swiglu_limit = 0.0;  // 0 switches the clamp off

  int64_t hc_mult = 0;
  int64_t hc_sinkhorn_iters = 0;
  double hc_eps = 1e-6;

  std::vector<int64_t> engram_layer_ids;
  std::vector<int64_t> engram_num_embeddings;  // rows of each layer's table
  int64_t engram_vocab_size = 0;               // the base the primes are searched from
  int64_t engram_max_ngram_size = 0;
  int64_t engram_n_heads = 0;
  int64_t engram_head_dim = 0;
  int64_t engram_pad_id = 0;
  int64_t engram_compressed_vocab_size = 0;

  int64_t num_nextn_predict_layers = 0;  // draft layers; their forward does not exist yet
  DraftConfig draft;

  // Derived: docs/model.md, Attention.
  int64_t ratio(int64_t layer) const { return compress_ratios.at(layer); }
  bool is_kv_source(int64_t layer) const;
  bool is_index_source(int64_t layer) const;
  LayerMode mode(int64_t layer) const;
  int64_t kv_source(int64_t layer) const;     // the nearest KV source at or before `layer`; the layer must have ratio > 0
  int64_t index_source(int64_t layer) const;  // likewise for index sources
  // Position of `layer` in engram_layer_ids, or nothing.
  std::optional<int64_t> engram_index(int64_t layer) const;
  int64_t engram_columns() const { return (engram_max_ngram_size - 1) * engram_n_heads; }

  bool operator==(const TextConfig&) const = default;
};

struct VisionConfig {
  int64_t hidden_size = 0;
  int64_t intermediate_size = 0;
  int64_t num_hidden_layers = 0;
  int64_t num_attention_heads = 0;
  int64_t patch_size = 14;
  int64_t downsample_ratio = 3;
  double rope_theta = 10000.0;
  int64_t max_image_tokens = 1024;
  int64_t min_pixels = 295936;
  std::optional<double> max_wh_ratio;

  bool operator==(const VisionConfig&) const = default;
};

struct ModelConfig {
  TextConfig text;
  std::optional<VisionConfig> vision;
  int64_t image_token_id = -1;
  std::string dtype = "float32";  // of the stored weights
  ModelSwitches switches;

  // The axis over which the rows of Engram tables lie.
  const char* engram_axis() const { return switches.engram_storage == EngramStorage::kDevice ? "ep" : "stage"; }

  bool operator==(const ModelConfig&) const = default;
};

// Reads a config.json. Throws one ConfigError that lists every mistake with file, line and key. Keys that are not ours are warned
// about and ignored, since files of other tools carry extras; values we do not compute (another hidden_act, biases, more than one
// shared expert, unknown rotary scaling ...) are refused.
ModelConfig parse_model_config(const std::string& path, const ParseOptions& options = {});

// Reads the same keys from a map, for example those inline in our YAML. Mistakes go to `problems`; unknown keys are mistakes
// if `unknown` says so.
ModelConfig parse_model_config(const yaml::Node& node, Problems& problems, yaml::MapReader::Unknown unknown,
                               const ParseOptions& options = {});

// The composite config.json with the released key names; parsing it gives an equal config (switches aside, which are not in it).
nlohmann::ordered_json to_hf_json(const ModelConfig& config);

std::vector<KeyDescription> describe_keys();

}  // namespace hyperparallel::models::deepseek_v41
