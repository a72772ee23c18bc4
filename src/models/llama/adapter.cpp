#include "models/llama/adapter.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "models/adapter/tokens.h"
#include "models/llama/program.h"

namespace hyperparallel::models::llama {
namespace {

class LlamaModel : public Model {
 public:
  LlamaModel(const LlamaConfig& config, const ProgramOptions& options, double std)
      : layout_(options.layout), built_(build_program(config, options, std)) {}

  const engine::Program& program() const override { return built_.program; }
  const engine::Layout& layout() const override { return layout_; }

  engine::ValueMap inputs(const data::MicroBatch& batch, at::ScalarType) const override {
    const LlamaInputs& in = built_.inputs;
    const RankTokens tokens(batch.cu_seqlens, layout_);
    engine::ValueMap map;
    tokens.put(map, in, tensor_of(batch.input_ids), tensor_of(batch.labels));
    std::vector<int64_t> first, rows, order(tokens.tokens());
    for (int64_t token : tokens.own()) first.push_back(tokens.document_begin(token));
    int64_t gathered = 0;
    for (int rank = 0; rank < layout_.size("cp"); ++rank) {
      rows.push_back(static_cast<int64_t>(tokens.shards().tokens(rank).size()));
      for (int64_t token : tokens.shards().tokens(rank)) order[token] = gathered++;
    }
    map[in.first_key.index] = tensor_of(first);
    map[in.own_key.index] = tensor_of(tokens.own());
    map[in.cp_rows.index] = tensor_of(rows);
    if (in.key_order.valid()) map[in.key_order.index] = tensor_of(order);
    return map;
  }

 private:
  const engine::Layout layout_;
  const LlamaProgram built_;
};

class LlamaArchitecture : public Architecture {
 public:
  LlamaArchitecture(LlamaConfig config, double std) : c_(std::move(config)), std_(std > 0 ? std : c_.initializer_range) {}

  std::string model_type() const override { return "llama"; }
  nlohmann::ordered_json config_json() const override { return to_json(c_); }
  std::string summary() const override {
    return fmt::format("  {} layers alike: {} heads of {} over {} key heads, feed-forward {}\n", c_.num_hidden_layers,
                       c_.num_attention_heads, c_.head_dim, c_.num_key_value_heads, c_.intermediate_size);
  }
  int64_t vocab_size() const override { return c_.vocab_size; }
  int64_t max_positions() const override { return c_.max_position_embeddings; }

  std::unique_ptr<Model> build(const ProgramOptions& options, const data::Tokenizer*) const override {
    if (options.losses.draft.weight > 0) throw ConfigError("train.loss.draft.weight: model_type llama has no draft layers");
    return std::make_unique<LlamaModel>(c_, options, std_);
  }

  double needed_flops(const data::MicroBatch& batch) const override {
    const double d = c_.hidden_size, queries = c_.num_attention_heads * c_.head_dim, keys = c_.num_key_value_heads * c_.head_dim;
    const double weights = 2 * d * queries + 2 * d * keys + 3 * d * c_.intermediate_size;  // multiply-adds of a token and layer
    double layer = 0;
    for (size_t t = 0; t < batch.input_ids.size(); ++t) {
      if (batch.padding[t] == 0) layer += weights + 2 * queries * static_cast<double>(batch.position_ids[t] + 1);
    }
    return 6 * (layer * c_.num_hidden_layers + static_cast<double>(batch.supervised_tokens) * d * c_.vocab_size);
  }

  std::string part_of(const std::string& parameter) const override {
    return parameter.starts_with("model.layers.") ? "layers" : parameter.ends_with("norm.weight") ? "norm" : "vocabulary";
  }
  std::map<std::string, int64_t> symbol_sizes(const ProgramOptions& options, int64_t tokens, const PlannedPictures&,
                                              Routing) const override {
    const int64_t own = options.layout.part(tokens, "cp");
    return {{"tokens", own},
            {"shard", options.layout.part(own, "tp")},
            {"all_tokens", tokens},
            {"attention.rows", std::min(options.attention_chunk, own)},
            {"loss.rows", std::min(options.cross_entropy_chunk, own)}};
  }

 private:
  const LlamaConfig c_;
  const double std_;
};

ArchitecturePtr parse(const yaml::Node& node, Problems& problems, yaml::MapReader::Unknown unknown, const ParseOptions& options) {
  return std::make_shared<LlamaArchitecture>(parse_config(node, problems, unknown, options), options.switches.initialisation.std);
}

}  // namespace

Family family() {
  return {{"llama"}, parse, describe_keys};
}

}  // namespace hyperparallel::models::llama
