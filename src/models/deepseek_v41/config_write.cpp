// Writing a ModelConfig as config.json.
#include <nlohmann/json.hpp>

#include "models/adapter/config_writer.h"
#include "models/deepseek_v41/config.h"
#include "models/deepseek_v41/config_keys.h"

namespace hyperparallel::models::deepseek_v41 {
namespace {

using Json = nlohmann::ordered_json;

Json yarn(const RopeParameters& rope) {
  return {{"rope_type", "yarn"},
          {"factor", rope.factor},
          {"beta_fast", rope.beta_fast},
          {"beta_slow", rope.beta_slow},
          {"original_max_position_embeddings", rope.original_max_position_embeddings}};
}

// The plain keys of the release, unless the main table is scaled, which they cannot say.
void write_rope(const TextConfig& text, Json& json) {
  json["rope_theta"] = text.rope_main.theta;
  json["compress_rope_theta"] = text.rope_compress.theta;
  json["rope_scaling"] = text.rope_compress.yarn ? yarn(text.rope_compress) : Json(nullptr);
  if (!text.rope_main.yarn) return;
  for (auto [key, rope] : {std::pair("main", &text.rope_main), std::pair("compress", &text.rope_compress)}) {
    Json& table = json["rope_parameters"][key];
    table = rope->yarn ? yarn(*rope) : Json{{"rope_type", "default"}};
    table["rope_theta"] = rope->theta;
  }
}

}  // namespace

nlohmann::ordered_json to_hf_json(const ModelConfig& config) {
  Json root;
  root["architectures"] = {"DeepseekV41ForCausalLM"};
  root["model_type"] = "deepseek_v41";
  root["dtype"] = config.dtype;
  KeyWriter root_visitor{root};
  visit_shared(root_visitor, config.text);
  if (config.image_token_id >= 0) root["image_token_id"] = config.image_token_id;

  Json& text = root["text_config"];
  text["model_type"] = "deepseek_v41_text";
  KeyWriter text_visitor{text};
  visit_text(text_visitor, config.text);
  if (config.text.num_nextn_predict_layers > 0) visit_draft(text_visitor, config.text.draft);
  text["candidate_source_layer_id"] = config.text.candidate_source_layer_id;
  visit_shared(text_visitor, config.text);
  write_rope(config.text, text);
  text["dtype"] = config.dtype;
  if (!config.vision) return root;

  Json& vision = root["vision_config"];
  vision["model_type"] = "deepseek_v41_vision";
  KeyWriter vision_visitor{vision};
  visit_vision(vision_visitor, *config.vision);
  return root;
}

}  // namespace hyperparallel::models::deepseek_v41
