#include "models/deepseek_v41/program.h"

#include "base/error.h"
#include "kernels/rows/op.h"
#include "models/deepseek_v41/builder.h"

namespace hyperparallel::models::deepseek_v41 {

using engine::Initialiser;
using engine::ParameterId;
using engine::ParameterUse;
using engine::SegmentRun;
using engine::ValueId;

std::string layer_name(int64_t layer) {
  return "layers." + std::to_string(layer);
}
std::string layer_parameter(int64_t layer) {
  return "model.layers." + std::to_string(layer) + ".";
}

double ModelBuilder::std() const {
  const double own = config.switches.initialisation.std;
  return own > 0 ? own : config.text.initializer_range;
}

ParameterId ModelBuilder::weight(const std::string& name, std::vector<int64_t> shape) {
  return program.parameter({name, std::move(shape), ParameterUse::kWeight, false, Initialiser::normal(std())});
}
ParameterId ModelBuilder::leaf(const std::string& name, std::vector<int64_t> shape, Initialiser start) {
  return program.parameter({name, std::move(shape), ParameterUse::kLeaf, false, std::move(start)});
}
ParameterId ModelBuilder::master_leaf(const std::string& name, std::vector<int64_t> shape, Initialiser start) {
  return program.parameter({name, std::move(shape), ParameterUse::kLeaf, true, std::move(start)});
}
ParameterId ModelBuilder::gain(const std::string& name, int64_t size) {
  return leaf(name, {size}, Initialiser::fill(1.0));
}
ParameterId ModelBuilder::state(const std::string& name, std::vector<int64_t> shape) {
  return program.parameter({name, std::move(shape), ParameterUse::kState, true, Initialiser::fill(0.0)});
}

ValueId add_embedding(ModelBuilder& builder, ValueId span_embeddings) {
  const TextConfig& text = builder.text();
  const int64_t n = text.hc_mult;
  const ParameterId table = builder.weight("model.embed.weight", {text.vocab_size, text.hidden_size});
  builder.program.close_unit("embed");
  const ValueId ids = builder.inputs.ids, span_index = builder.inputs.span_index;
  const ValueId streams = builder.program.value("streams", {"tokens", n, text.hidden_size});
  std::vector<ValueId> reads{ids};
  if (span_embeddings.valid()) reads.insert(reads.end(), {span_embeddings, span_index});
  builder.program.segment("embed", reads, {streams}, {table}, [=](SegmentRun& run) {
    at::Tensor x = engine::embedding(run.read(ids), run.weight(table));  // [tokens, hidden]; zeros under spans
    if (span_embeddings.valid()) x = x + kernels::gather_rows(run.read(span_embeddings), run.read(span_index));
    run.observe("inputs_embeds", [&] { return x; });
    run.make(streams, x.unsqueeze(1).expand({-1, n, -1}));
  });
  return streams;
}

namespace {

// pre_mix at the start: one-hot on copy 0.
ValueId add_first_mix(ModelBuilder& builder) {
  const int64_t n = builder.text().hc_mult;
  const ValueId ids = builder.inputs.ids, pre = builder.program.choice("pre", {"tokens", n});
  builder.program.segment("first_mix", {ids}, {pre}, {}, [=](SegmentRun& run) {
    const at::Tensor one_hot = at::zeros({run.read(ids).size(0), n}, run.math_type());
    one_hot.select(1, 0).fill_(1);
    run.make(pre, one_hot);
  });
  return pre;
}

}  // namespace

ModelProgram build_program(const ModelConfig& config, const ProgramOptions& options) {
  ModelProgram model{config, options, {}, {}};
  ModelBuilder builder{{}, model.config, model.options, {}, {}, {}, {}, {}, {}, {}};
  add_inputs(builder, /*text=*/true, config.vision.has_value());
  add_rope_tables(builder);
  const ValueId spans = config.vision ? add_vision(builder) : ValueId{};
  ValueId streams = add_embedding(builder, spans);
  ValueId pre = add_first_mix(builder);
  for (int64_t layer = 0; layer < config.text.num_hidden_layers; ++layer) {
    builder.program.begin_region(layer_name(layer));
    if (config.text.engram_index(layer)) streams = add_engram(builder, layer, streams);
    const MixSite attn = add_mix_in(builder, layer, "attn", streams, pre);
    const ValueId attn_out = add_attention(builder, layer, attn.x);
    streams = add_mix_out(builder, layer, "attn", "mid", attn, attn_out, streams);
    const MixSite ffn = add_mix_in(builder, layer, "ffn", streams, attn.pre);
    builder.program.close_unit(layer_name(layer));
    const ValueId ffn_out = add_moe(builder, layer, ffn.x);
    streams = add_mix_out(builder, layer, "ffn", "streams", ffn, ffn_out, streams);
    pre = ffn.pre;
    builder.program.end_region();
  }
  add_head(builder, streams, pre);
  model.inputs = builder.inputs;
  model.program = std::move(builder.program).build();
  return model;
}

ModelProgram build_vision_program(const ModelConfig& config, const ProgramOptions& options) {
  HP_CHECK(config.vision.has_value(), "the configuration has no vision tower");
  ModelProgram model{config, options, {}, {}};
  ModelBuilder builder{{}, model.config, model.options, {}, {}, {}, {}, {}, {}, {}};
  add_inputs(builder, /*text=*/false, /*vision=*/true);
  const ValueId spans = add_vision(builder), cotangent = builder.inputs.cotangent;
  const ValueId objective = builder.program.value("loss", {});
  builder.program.segment("objective", {spans, cotangent}, {objective}, {},
                          [=](SegmentRun& run) { run.make(objective, (run.read(spans) * run.read(cotangent)).sum()); });
  builder.program.loss(objective);
  model.inputs = builder.inputs;
  model.program = std::move(builder.program).build();
  return model;
}

}  // namespace hyperparallel::models::deepseek_v41
