// The keys of config.json in words, for the documentation.
#include "models/adapter/config_writer.h"
#include "models/deepseek_v41/config.h"
#include "models/deepseek_v41/config_keys.h"

namespace hyperparallel::models::deepseek_v41 {
std::vector<KeyDescription> describe_keys() {
  std::vector<KeyDescription> keys;
  keys.push_back({"root", "dtype", "float32, bfloat16", "float32"});
  keys.push_back({"root", "image_token_id", "whole number at least 0", "required beside vision_config"});
  KeyDescriber text("text_config", keys);
  visit_text(text, TextConfig());
  visit_draft(text, DraftConfig());
  keys.push_back({"text_config", "candidate_source_layer_id", "the last KV source, or -1 for no pool", "the last KV source"});
  visit_shared(text, TextConfig());
  keys.push_back({"text_config", "rope_theta", "number above 0", "10000"});
  keys.push_back({"text_config", "compress_rope_theta", "number above 0", "160000"});
  keys.push_back({"text_config", "rope_scaling",
                  "null, or rope_type yarn with factor, beta_fast, beta_slow, original_max_position_embeddings", "null"});
  keys.push_back({"text_config", "rope_parameters",
                  "main and compress, each with rope_type (default or yarn), rope_theta and the keys of rope_scaling; wins over "
                  "the three keys before it",
                  "null"});
  KeyDescriber vision("vision_config", keys);
  visit_vision(vision, VisionConfig());
  return keys;
}

}  // namespace hyperparallel::models::deepseek_v41
