// Reading config.json, or the same keys inline, into a ModelConfig.
#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "models/deepseek_v41/config.h"
#include "models/deepseek_v41/config_keys.h"
#include "models/deepseek_v41/config_rules.h"

namespace hyperparallel::models::deepseek_v41 {
namespace {

using yaml::MapReader;
using yaml::Node;

// One rotary table, from `rope_scaling` or from an entry of `rope_parameters`.
class RopeReader {
 public:
  RopeReader(const Node& node, Problems& problems, const TextConfig& text) : reader_(node, problems), text_(text) {}

  void read(RopeParameters& rope) {
    std::string type = "default";
    if (!reader_.read("rope_type", type)) reader_.read("type", type);
    reader_.ignore("type");
    reader_.read("rope_theta", rope.theta, kAbove0);
    if (type != "default" && type != "yarn") {
      reader_.complain("rope_type", fmt::format("{} is not supported, expected default or yarn", type));
      return;
    }
    rope.yarn = type == "yarn";
    if (rope.yarn) read_yarn(rope);
    refuse_others(rope.yarn);
    reader_.finish(MapReader::Unknown::kError);
  }

 private:
  void read_yarn(RopeParameters& rope) {
    if (!reader_.read("factor", rope.factor, {.min = 1})) missing("factor");
    reader_.read("beta_fast", rope.beta_fast, kAbove0);
    reader_.read("beta_slow", rope.beta_slow, kAbove0);
    if (!reader_.read("original_max_position_embeddings", rope.original_max_position_embeddings, kPositive)) {
      missing("original_max_position_embeddings");
    }
    if (rope.beta_fast < rope.beta_slow) {
      reader_.complain("beta_fast", fmt::format("{} is smaller than beta_slow {}", rope.beta_fast, rope.beta_slow));
    }
  }

  void missing(const char* key) {
    const Node* entry = reader_.node().find(key);
    if (!entry || entry->is_null()) reader_.complain(key, "is required for yarn");
  }

  // Keys of transformers that would change the table in a way V4.1 does not have.
  void refuse_others(bool yarn) {
    if (!yarn) {
      for (const char* key : {"factor", "beta_fast", "beta_slow", "original_max_position_embeddings"}) reader_.ignore(key);
    }
    double magnitude = 1.0;
    if (reader_.read("attention_factor", magnitude) && magnitude != 1.0) {
      reader_.complain("attention_factor", fmt::format("{} is not supported, expected 1 or null", magnitude));
    }
    double partial = 0;
    const double expected =
        static_cast<double>(text_.qk_rope_head_dim) / static_cast<double>(std::max<int64_t>(text_.head_dim, 1));
    if (reader_.read("partial_rotary_factor", partial) && std::abs(partial * text_.head_dim - text_.qk_rope_head_dim) > 0.5) {
      reader_.complain("partial_rotary_factor",
                       fmt::format("{} contradicts qk_rope_head_dim / head_dim = {}", partial, expected));
    }
    bool truncate = true;
    if (reader_.read("truncate", truncate) && !truncate) {
      reader_.complain("truncate", "false is not supported: the ramp limits of YaRN are rounded outwards");
    }
  }

  MapReader reader_;
  const TextConfig& text_;
};

// Reads one configuration; holds what its parts share.
class ConfigReader {
 public:
  ConfigReader(const Node& root, Problems& problems, MapReader::Unknown unknown, const ParseOptions& options)
      : root_node_(root), root_(root, problems), problems_(problems), unknown_(unknown), options_(options) {}

  ModelConfig read() {
    const Node* text = root_.get("text_config");
    const Node* vision = root_.get("vision_config");
    const bool composite = text || vision;
    check_model_type(root_, composite ? "deepseek_v41" : "deepseek_v41_text");
    ignore_extras(root_);
    read_dtype(root_, config_.dtype);
    root_.read("image_token_id", config_.image_token_id, kNotNegative);
    if (composite) {
      read_composite(text, vision);
    } else {
      read_text(root_, false);
    }
    root_.finish(unknown_, own_and_text_keys(composite), options_.elsewhere);
    return config_;
  }

 private:
  void read_composite(const Node* text, const Node* vision) {
    if (vision) read_vision(*vision);
    KeyReader shared(root_, true);
    visit_shared(shared, config_.text);
    if (!text) {
      if (!options_.allow_vision_only) root_.complain("text_config", "is required beside vision_config");
      return;
    }
    const TextConfig at_root = config_.text;
    MapReader reader(*text, problems_);
    check_model_type(reader, "deepseek_v41_text");
    ignore_extras(reader);
    if (!root_node_.find("dtype") && !root_node_.find("torch_dtype")) read_dtype(reader, config_.dtype);
    reader.ignore("dtype");
    reader.ignore("torch_dtype");
    const bool partial = options_.allow_vision_only && vision && !text->find("num_hidden_layers");
    read_text(reader, partial);
    reader.finish(unknown_);
    check_agreement(reader, at_root);
  }

  void read_text(MapReader& reader, bool partial) {
    KeyReader visitor(reader, partial);
    visit_text(visitor, config_.text);
    visit_draft(visitor, config_.text.draft);
    visit_shared(visitor, config_.text);
    read_rope(reader);
    int64_t candidate = config_.text.kv_source_layer_ids.empty() ? -1 : config_.text.kv_source_layer_ids.back();
    reader.read("candidate_source_layer_id", candidate);
    config_.text.candidate_source_layer_id = std::max<int64_t>(candidate, -1);
    if (partial || !visitor.sound()) return;
    check_text(config_.text, [&](const std::string& key, const std::string& message) { reader.complain(key, message); });
    if (config_.image_token_id >= config_.text.vocab_size) {
      root_.complain("image_token_id",
                     fmt::format("{} is outside the vocabulary of {}", config_.image_token_id, config_.text.vocab_size));
    }
  }

  void read_vision(const Node& node) {
    MapReader reader(node, problems_);
    check_model_type(reader, "deepseek_v41_vision");
    ignore_extras(reader);
    reader.ignore("dtype");
    reader.ignore("torch_dtype");
    KeyReader visitor(reader);
    visit_vision(visitor, config_.vision.emplace());
    reader.finish(unknown_);
    if (config_.image_token_id < 0) root_.complain("image_token_id", "is required beside vision_config");
    if (!visitor.sound()) return;
    check_vision(*config_.vision, [&](const std::string& key, const std::string& message) { reader.complain(key, message); });
  }

  // NOTE [Rotary keys]: `rope_parameters: {main, compress}` wins over the plain keys, which may stand beside it.
  void read_rope(MapReader& reader) {
    TextConfig& text = config_.text;
    reader.read("rope_theta", text.rope_main.theta, kAbove0);
    text.rope_compress.theta = 160000.0;
    reader.read("compress_rope_theta", text.rope_compress.theta, kAbove0);
    const Node* scaling = reader.get("rope_scaling");
    const Node* parameters = reader.get("rope_parameters");
    if (parameters) {
      MapReader tables(*parameters, problems_);
      for (auto [key, rope] : {std::pair("main", &text.rope_main), std::pair("compress", &text.rope_compress)}) {
        if (const Node* table = tables.get(key)) {
          RopeReader(*table, problems_, text).read(*rope);
        } else {
          tables.complain(key, "is required in rope_parameters");
        }
      }
      tables.finish(MapReader::Unknown::kError);
    } else if (scaling) {
      RopeReader(*scaling, problems_, text).read(text.rope_compress);
    }
  }

  void check_model_type(MapReader& reader, const char* expected) {
    std::string type = expected;
    if (reader.read("model_type", type) && type != expected) {
      reader.complain("model_type", fmt::format("expected {}, found {}", expected, type));
    }
  }

  // A composite file may say the shared keys twice, but not differently.
  void check_agreement(MapReader& reader, const TextConfig& at_root) {
    const TextConfig& text = config_.text;
    const auto check = [&](const char* key, auto root_value, auto text_value) {
      if (root_node_.find(key) && reader.node().find(key) && root_value != text_value) {
        reader.complain(key, fmt::format("{} contradicts {} at the root of the file", text_value, root_value));
      }
    };
    check("tie_word_embeddings", at_root.tie_word_embeddings, text.tie_word_embeddings);
    check("bos_token_id", at_root.bos_token_id, text.bos_token_id);
    check("eos_token_id", at_root.eos_token_id, text.eos_token_id);
    check("pad_token_id", at_root.pad_token_id, text.pad_token_id);
  }

  // Names for the nearest-key search at the root.
  std::vector<std::string> own_and_text_keys(bool composite) {
    std::vector<std::string> keys = options_.own_keys;
    for (const std::string& key : options_.own_keys) root_.ignore(key);
    if (composite) keys.insert(keys.end(), {"text_config", "vision_config"});
    return keys;
  }

  const Node& root_node_;
  MapReader root_;
  Problems& problems_;
  MapReader::Unknown unknown_;
  const ParseOptions& options_;
  ModelConfig config_;
};

}  // namespace

ModelConfig parse_model_config(const Node& node, Problems& problems, MapReader::Unknown unknown, const ParseOptions& options) {
  return ConfigReader(node, problems, unknown, options).read();
}

ModelConfig parse_model_config(const std::string& path, const ParseOptions& options) {
  Problems problems;
  Node node = yaml::read_yaml_file(path, problems);
  problems.throw_if_any();
  ModelConfig config = parse_model_config(node, problems, MapReader::Unknown::kWarning, options);
  problems.throw_if_any();
  return config;
}

}  // namespace hyperparallel::models::deepseek_v41
