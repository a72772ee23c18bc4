#include "models/llama/program.h"

#include <fmt/ranges.h>

#include "base/error.h"
#include "kernels/causal_attention/op.h"
#include "kernels/norm/op.h"
#include "kernels/rope/op.h"

namespace hyperparallel::models::llama {
namespace {

using engine::ExchangeKind;
using engine::ParameterId;
using engine::SegmentRun;
using engine::ValueId;
using engine::ValueKind;

class Builder : public DecoderBuilder {
 public:
  Builder(const LlamaConfig& config, const ProgramOptions& options, double std)
      : DecoderBuilder(options.layout, std, options.overrides, options.trainable), c_(config), options_(options) {}

  LlamaProgram build() && {
    add_inputs();
    add_rope();
    const Vocabulary embedding = add_vocabulary(*this, "model.embed_tokens.weight", c_.vocab_size, c_.hidden_size);
    program.close_unit("embed");
    ValueId hidden = add_embedding(embedding);
    for (int64_t layer = 0; layer < c_.num_hidden_layers; ++layer) {
      program.begin_region(layer_name(layer));
      hidden = add_attention(layer, hidden);
      hidden = add_mlp(layer, hidden);
      program.close_unit(layer_name(layer));
      program.end_region();
    }
    const ValueId normed = add_norm("final_norm", "final_hidden", "model.norm.weight", hidden);
    const Vocabulary head =
        c_.tie_word_embeddings ? embedding : add_vocabulary(*this, "lm_head.weight", c_.vocab_size, c_.hidden_size);
    program.close_unit("head");
    add_loss(*this, head, enter_tokens(*this, "final_hidden.all", normed), inputs_.targets, options_.cross_entropy_chunk,
             options_.losses.z);
    check_overrides();
    return {inputs_, std::move(program).build()};
  }

 private:
  void add_inputs() {
    static_cast<TokenInputs&>(inputs_) = add_token_inputs(*this);
    inputs_.first_key = program.input("first_key", ValueKind::kDiscrete, {"tokens"});
    inputs_.own_key = program.input("own_key", ValueKind::kDiscrete, {"tokens"});
    inputs_.cp_rows = program.input("cp_rows", ValueKind::kDiscrete, {layout().size("cp")});
    if (layout().balanced) inputs_.key_order = program.input("key_order", ValueKind::kDiscrete, {"all_tokens"});
  }

  void add_rope() {
    cos_ = program.choice("rope.cos", {"tokens", c_.head_dim / 2});
    sin_ = program.choice("rope.sin", {"tokens", c_.head_dim / 2});
    program.segment("rope", {inputs_.positions}, {cos_, sin_}, {},
                    [positions = inputs_.positions, cos = cos_, sin = sin_,
                     frequencies = kernels::rope_frequencies(c_.head_dim, c_.rope_theta)](SegmentRun& run) {
                      const kernels::RopeTable table = kernels::rope_table(run.read(positions), frequencies, run.math_type());
                      run.make(cos, table.cos);
                      run.make(sin, table.sin);
                    });
  }

  ValueId add_embedding(const Vocabulary& vocabulary) {
    const ValueId found = program.value("embed.partial", {"tokens", c_.hidden_size});
    program.segment("embed", {inputs_.ids}, {found}, {vocabulary.table},
                    [=, ids = inputs_.ids](SegmentRun& run) { run.make(found, look_up(run, vocabulary, run.read(ids))); });
    return leave_tokens(*this, "inputs_embeds", found);
  }

  ValueId add_norm(const std::string& segment, const std::string& result, const std::string& parameter, ValueId x) {
    partial = layout().sequence_parallel;
    const ParameterId norm = gain(parameter, c_.hidden_size);
    const ValueId out = program.value(result, {stream_rows(), c_.hidden_size});
    program.segment(segment, {x}, {out}, {norm}, [=, eps = c_.rms_norm_eps](SegmentRun& run) {
      run.make(out, kernels::rms_norm(run.read(x), run.parameter(norm), eps));
    });
    return out;
  }

  ValueId add_sum(const std::string& segment, const std::string& result, ValueId x, ValueId y) {
    const ValueId out = program.value(result, {stream_rows(), c_.hidden_size});
    program.segment(segment, {x, y}, {out}, {}, [=](SegmentRun& run) { run.make(out, run.read(x) + run.read(y)); });
    return out;
  }

  // Keys and values of this rank's tokens and key heads, [tokens, 2, kv heads, d].
  ValueId add_kv(const std::string& name, const std::string& prefix, ValueId x) {
    const int64_t all = c_.num_key_value_heads, heads = local(all, kByHead), d = c_.head_dim;
    const ParameterId wk = weight(prefix + "k_proj.weight", {all * d, c_.hidden_size}, kByHead);
    const ParameterId wv = weight(prefix + "v_proj.weight", {all * d, c_.hidden_size}, kByHead);
    const ValueId kv = program.value(name + ".kv", {"tokens", 2, heads, d});
    program.segment(name + ".kv", {x, cos_, sin_}, {kv}, {wk, wv}, [=, cos = cos_, sin = sin_](SegmentRun& run) {
      const at::Tensor k = engine::linear(run.read(x), run.weight(wk)).view({-1, heads, d});
      const at::Tensor v = engine::linear(run.read(x), run.weight(wv)).view({-1, heads, d});
      run.make(kv, at::stack({kernels::apply_rope_halves(k, {run.read(cos), run.read(sin)}), v}, 1));
    });
    return kv;
  }

  ValueId add_queries(const std::string& name, const std::string& prefix, ValueId x) {
    const int64_t all = c_.num_attention_heads, heads = local(all, kByHead), d = c_.head_dim;
    const ParameterId wq = weight(prefix + "q_proj.weight", {all * d, c_.hidden_size}, kByHead);
    const ValueId q = program.value(name + ".q", {"tokens", heads, d});
    program.segment(name + ".queries", {x, cos_, sin_}, {q}, {wq}, [=, cos = cos_, sin = sin_](SegmentRun& run) {
      const at::Tensor wide = engine::linear(run.read(x), run.weight(wq)).view({-1, heads, d});
      run.make(q, kernels::apply_rope_halves(wide, {run.read(cos), run.read(sin)}));
    });
    return q;
  }

  ValueId add_attention(int64_t layer, ValueId hidden) {
    const std::string name = layer_name(layer) + ".attn", prefix = layer_parameter(layer) + "self_attn.";
    const ValueId normed =
        add_norm(layer_name(layer) + ".attn_norm", name + ".x", layer_parameter(layer) + "input_layernorm.weight", hidden);
    partial = true;
    const ValueId x = enter_tokens(*this, name + ".x.all", normed);
    // The keys of all cp ranks, in the order of the tokens; they travel while the queries are made.
    const ValueId keys = program.launch(name + ".keys", ExchangeKind::kAllGather, "cp", add_kv(name, prefix, x), "all_tokens",
                                        inputs_.cp_rows, {}, inputs_.key_order);
    const ValueId q = add_queries(name, prefix, x);
    program.wait(keys);
    const ParameterId wo = weight(prefix + "o_proj.weight", {c_.hidden_size, c_.num_attention_heads * c_.head_dim}, kByInput);
    const ValueId part = program.value(name + ".partial", {"tokens", c_.hidden_size});
    program.segment(name + ".attend", {q, keys, inputs_.first_key, inputs_.own_key}, {part}, {wo},
                    [=, first = inputs_.first_key, own = inputs_.own_key, chunk = options_.attention_chunk](SegmentRun& run) {
                      const at::Tensor kv = run.read(keys);
                      const at::Tensor mixed = kernels::causal_attention(run.read(q), kv.select(1, 0), kv.select(1, 1),
                                                                         run.read(first), run.read(own), chunk);
                      run.make(part, engine::linear(mixed.flatten(1), run.weight(wo)));
                    });
    const ValueId out = leave_tokens(*this, layer_name(layer) + ".attn_out", part);
    return add_sum(layer_name(layer) + ".attn_add", layer_name(layer) + ".mid", hidden, out);
  }

  ValueId add_mlp(int64_t layer, ValueId hidden) {
    const std::string name = layer_name(layer) + ".mlp", prefix = layer_parameter(layer) + "mlp.";
    const ValueId normed = add_norm(layer_name(layer) + ".mlp_norm", name + ".x",
                                    layer_parameter(layer) + "post_attention_layernorm.weight", hidden);
    partial = true;
    const ValueId x = enter_tokens(*this, name + ".x.all", normed);
    const ParameterId gate = weight(prefix + "gate_proj.weight", {c_.intermediate_size, c_.hidden_size}, kByHead);
    const ParameterId up = weight(prefix + "up_proj.weight", {c_.intermediate_size, c_.hidden_size}, kByHead);
    const ParameterId down = weight(prefix + "down_proj.weight", {c_.hidden_size, c_.intermediate_size}, kByInput);
    const ValueId part = program.value(name + ".partial", {"tokens", c_.hidden_size});
    program.segment(name, {x}, {part}, {gate, up, down}, [=](SegmentRun& run) {
      const at::Tensor wide =
          at::silu(engine::linear(run.read(x), run.weight(gate))) * engine::linear(run.read(x), run.weight(up));
      run.make(part, engine::linear(wide, run.weight(down)));
    });
    const ValueId out = leave_tokens(*this, layer_name(layer) + ".mlp_out", part);
    return add_sum(layer_name(layer) + ".mlp_add", layer_name(layer) + ".hidden", hidden, out);
  }

  const LlamaConfig& c_;
  const ProgramOptions& options_;
  LlamaInputs inputs_;
  ValueId cos_, sin_;
};

void check_degrees(const LlamaConfig& config, const engine::Layout& layout) {
  const int64_t tp = layout.size("tp"), heads = config.num_attention_heads, kv_heads = config.num_key_value_heads;
  std::vector<std::string> errors;
  for (const auto& [key, size] : {std::pair("num_attention_heads", heads), std::pair("num_key_value_heads", kv_heads)}) {
    if (size % tp == 0) continue;
    std::vector<int64_t> accepted;
    for (int64_t degree = 1; degree <= kv_heads; ++degree) {
      if (heads % degree == 0 && kv_heads % degree == 0) accepted.push_back(degree);
    }
    errors.push_back(fmt::format("parallel.tp {} does not divide {} {}; accepted: {}", tp, key, size, fmt::join(accepted, ", ")));
  }
  if (layout.size("ep") > 1)
    errors.push_back(fmt::format("parallel.ep {}: model_type llama has no experts; accepted: 1", layout.size("ep")));
  if (!errors.empty()) throw ConfigError("{}", fmt::join(errors, "\n"));
}

}  // namespace

LlamaProgram build_program(const LlamaConfig& config, const ProgramOptions& options, double std) {
  check_degrees(config, options.layout);
  LlamaProgram built = Builder(config, options, std).build();
  declare_footprints(built.program, config, options.layout);
  return built;
}

}  // namespace hyperparallel::models::llama
