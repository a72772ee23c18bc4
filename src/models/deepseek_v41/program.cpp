#include "models/deepseek_v41/program.h"

#include <fmt/ranges.h>

#include "base/error.h"
#include "kernels/rows/op.h"
#include "models/deepseek_v41/builder.h"

namespace hyperparallel::models::deepseek_v41 {

using engine::SegmentRun;
using engine::ValueId;

ModelBuilder::ModelBuilder(const ModelConfig& given, const ProgramOptions& built)
    : DecoderBuilder(built.layout,
                     given.switches.initialisation.std > 0 ? given.switches.initialisation.std : given.text.initializer_range,
                     built.overrides),
      config(given),
      options(built) {}

ValueId add_embedding(ModelBuilder& builder, ValueId spans) {
  const TextConfig& text = builder.text();
  const int64_t n = text.hc_mult;
  const Vocabulary vocabulary = add_vocabulary(builder, "model.embed.weight", text.vocab_size, text.hidden_size);
  builder.program.close_unit("embed");
  const ValueId ids = builder.inputs.ids, span_index = builder.inputs.span_index;
  const ValueId found = builder.program.value("embed.partial", {"tokens", text.hidden_size});
  std::vector<ValueId> reads{ids};
  if (spans.valid()) reads.insert(reads.end(), {spans, span_index});
  builder.program.segment("embed", reads, {found}, {vocabulary.table}, [=](SegmentRun& run) {
    at::Tensor x = look_up(run, vocabulary, run.read(ids));  // [tokens, hidden], zeros under spans
    if (spans.valid()) x = x + kernels::gather_rows(run.read(spans), run.read(span_index));
    run.make(found, x);
  });
  const ValueId embedded = leave_tokens(builder, "inputs_embeds", found);
  const ValueId streams = builder.program.value("streams", {builder.stream_rows(), n, text.hidden_size});
  builder.program.segment("copy_to_streams", {embedded}, {streams}, {}, [=](SegmentRun& run) {
    run.make(streams, run.read(embedded).unsqueeze(1).expand({-1, n, -1}));
  });
  return streams;
}

namespace {

// pre_mix at the start: one-hot on copy 0.
ValueId add_first_mix(ModelBuilder& builder, ValueId streams) {
  const int64_t n = builder.text().hc_mult;
  const ValueId pre = builder.program.choice("pre", {builder.stream_rows(), n});
  builder.program.segment("first_mix", {streams}, {pre}, {}, [=](SegmentRun& run) {
    const at::Tensor one_hot = at::zeros({run.read(streams).size(0), n}, run.math_type());
    one_hot.select(1, 0).fill_(1);
    run.make(pre, one_hot);
  });
  return pre;
}

// What the axes must divide.
void check_degrees(const TextConfig& text, const engine::Layout& layout, bool cached) {
  const int64_t tp = layout.size("tp"), ep = layout.size("ep");
  std::vector<std::string> errors;
  const auto divides = [&](const char* key, int64_t size) {
    if (size % tp == 0) return;
    std::vector<int64_t> accepted;
    for (int64_t degree = 1; degree <= size; ++degree) {
      if (text.num_attention_heads % degree == 0 && text.o_groups % degree == 0 && text.index_n_heads % degree == 0)
        accepted.push_back(degree);
    }
    errors.push_back(fmt::format("parallel.tp {} does not divide {} {}; accepted: {}", tp, key, size, fmt::join(accepted, ", ")));
  };
  divides("num_attention_heads", text.num_attention_heads);
  divides("o_groups", text.o_groups);
  if (text.index_n_heads > 0) divides("index_n_heads", text.index_n_heads);
  if (ep > text.n_routed_experts)
    errors.push_back(fmt::format("parallel.ep {} is more than the {} routed experts", ep, text.n_routed_experts));
  HP_CHECK(!cached || layout.size("cp") == 1, "a cached program over cp");
  if (!errors.empty()) throw ConfigError("{}", fmt::join(errors, "\n"));
}

}  // namespace

ModelProgram build_program(const ModelConfig& config, const ProgramOptions& options) {
  ModelProgram model{config, options, {}, {}};
  check_degrees(config.text, options.layout, options.cached);
  ModelBuilder builder(model.config, model.options);
  add_inputs(builder, /*text=*/true, config.vision.has_value());
  add_rope_tables(builder);
  ValueId spans;
  if (config.vision) {
    spans = launch_halo(builder, "spans", "stage", add_vision(builder), builder.inputs.spans);
    builder.program.wait(spans);
  }
  ValueId streams = add_embedding(builder, spans);
  ValueId pre = add_first_mix(builder, streams);
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
  add_auxiliary_losses(builder);
  builder.check_overrides();
  model.inputs = builder.inputs;
  model.program = std::move(builder.program).build();
  declare_footprints(model.program, config, options);
  return model;
}

ModelProgram build_vision_program(const ModelConfig& config, const ProgramOptions& options) {
  HP_CHECK(config.vision.has_value(), "the configuration has no vision tower");
  ModelProgram model{config, options, {}, {}};
  ModelBuilder builder(model.config, model.options);
  add_inputs(builder, /*text=*/false, /*vision=*/true);
  const ValueId spans = add_vision(builder), cotangent = builder.inputs.cotangent;
  const ValueId objective = builder.program.value("loss", {});
  builder.program.segment("objective", {spans, cotangent}, {objective}, {},
                          [=](SegmentRun& run) { run.make(objective, (run.read(spans) * run.read(cotangent)).sum()); });
  builder.program.loss({objective, "objective"});
  model.inputs = builder.inputs;
  model.program = std::move(builder.program).build();
  return model;
}

}  // namespace hyperparallel::models::deepseek_v41
