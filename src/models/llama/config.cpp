#include "models/llama/config.h"

#include <fmt/format.h>

#include "models/adapter/config_reader.h"
#include "models/adapter/config_writer.h"

namespace hyperparallel::models::llama {
namespace {

constexpr const char* kSpecialTokens[] = {"bos_token_id", "eos_token_id", "pad_token_id"};

// Every plain key, declared once: KeyReader, KeyWriter and KeyDescriber visit this list.
template <class Visitor, class Config>
void visit_config(Visitor& visit, Config&& c) {
  visit.required("vocab_size", c.vocab_size, kPositive);
  visit.required("hidden_size", c.hidden_size, kPositive);
  visit.required("intermediate_size", c.intermediate_size, kPositive);
  visit.required("num_hidden_layers", c.num_hidden_layers, kLayers);
  visit.required("num_attention_heads", c.num_attention_heads, kPositive);
  visit.optional("num_key_value_heads", c.num_key_value_heads, kPositive);
  visit.optional("head_dim", c.head_dim, kPositive);
  visit.optional("max_position_embeddings", c.max_position_embeddings, kPositive);
  visit.optional("rms_norm_eps", c.rms_norm_eps, kFrom0);
  visit.optional("initializer_range", c.initializer_range, kFrom0);
  visit.optional("tie_word_embeddings", c.tie_word_embeddings);
  visit.fixed("hidden_act", std::string("silu"));
  visit.fixed("attention_bias", false);
  visit.fixed("mlp_bias", false);
  visit.fixed("attention_dropout", 0.0);
  visit.fixed("pretraining_tp", int64_t{1});
}

// `rope_theta`, or as newer files have it `rope_parameters: {rope_type: default, rope_theta: ...}`. No scaling.
void read_rope(yaml::MapReader& reader, LlamaConfig& config) {
  reader.read("rope_theta", config.rope_theta, kAbove0);
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    const yaml::Node* node = reader.get(key);
    if (node == nullptr) continue;
    yaml::MapReader rope(*node, reader.problems());
    std::string type = "default";
    if (!rope.read("rope_type", type)) rope.read("type", type);
    rope.read("rope_theta", config.rope_theta, kAbove0);
    if (type != "default") {
      reader.complain(key, fmt::format("rope_type {} is not supported, expected default", type));
    } else {
      rope.finish();
    }
  }
}

void read_special_tokens(yaml::MapReader& reader, LlamaConfig& config) {
  for (const char* key : kSpecialTokens) {
    const yaml::Node* node = reader.get(key);
    if (node == nullptr) continue;
    if (node->kind == yaml::Node::Kind::kList) {
      if (const auto ids = yaml::to_integers(*node, reader.problems())) config.special_tokens[key] = *ids;
    } else if (const auto id = yaml::to_integer(*node, reader.problems())) {
      config.special_tokens[key] = {*id};
    }
  }
}

// Rules between keys.
void resolve(LlamaConfig& config, yaml::MapReader& reader) {
  const int64_t heads = config.num_attention_heads;
  if (config.num_key_value_heads == 0) config.num_key_value_heads = heads;
  if (heads % config.num_key_value_heads != 0)
    reader.complain("num_key_value_heads",
                    fmt::format("{} does not divide num_attention_heads {}", config.num_key_value_heads, heads));
  if (config.head_dim == 0) {
    config.head_dim = config.hidden_size / heads;
    if (config.hidden_size % heads != 0)
      reader.complain("num_attention_heads",
                      fmt::format("{} does not divide hidden_size {}; give head_dim", heads, config.hidden_size));
  }
  if (config.head_dim % 2 != 0)
    reader.complain("head_dim", fmt::format("{} is odd, rotary positions turn pairs", config.head_dim));
}

}  // namespace

LlamaConfig parse_config(const yaml::Node& node, Problems& problems, yaml::MapReader::Unknown unknown,
                         const ParseOptions& options) {
  LlamaConfig config;
  yaml::MapReader reader(node, problems);
  reader.ignore("model_type");
  ignore_extras(reader);
  KeyReader visitor(reader);
  visit_config(visitor, config);
  read_dtype(reader, config.dtype);
  read_rope(reader, config);
  read_special_tokens(reader, config);
  if (visitor.sound()) resolve(config, reader);
  for (const std::string& key : options.own_keys) reader.ignore(key);
  reader.finish(unknown, options.own_keys, options.elsewhere);
  ModelSwitches taken;
  taken.initialisation.std = options.switches.initialisation.std;
  if (options.switches != taken)
    problems.error(
        "model: cache_quantisation, candidates, engram_storage and initialisation, all but initialisation.std, mean nothing to "
        "model_type llama; leave them at their defaults");
  return config;
}

nlohmann::ordered_json to_json(const LlamaConfig& config) {
  nlohmann::ordered_json json;
  json["architectures"] = {"LlamaForCausalLM"};
  json["model_type"] = "llama";
  json["dtype"] = config.dtype;
  KeyWriter visitor{json};
  visit_config(visitor, config);
  json["rope_theta"] = config.rope_theta;
  for (const auto& [key, ids] : config.special_tokens) ids.size() == 1 ? json[key] = ids.front() : json[key] = ids;
  return json;
}

std::vector<KeyDescription> describe_keys() {
  std::vector<KeyDescription> keys{{"root", "dtype", "float32, bfloat16", "float32"}};
  KeyDescriber visitor("root", keys);
  visit_config(visitor, LlamaConfig());
  for (KeyDescription& key : keys) {
    if (key.key == "num_key_value_heads") key.default_value = "num_attention_heads";
    if (key.key == "head_dim") key.default_value = "hidden_size / num_attention_heads";
  }
  keys.push_back({"root", "rope_theta", "number above 0", "10000"});
  keys.push_back({"root", "rope_parameters", "null, or rope_type default and rope_theta; likewise rope_scaling", "null"});
  for (const char* key : kSpecialTokens) keys.push_back({"root", key, "null, a whole number or a list of them", "null"});
  return keys;
}

}  // namespace hyperparallel::models::llama
