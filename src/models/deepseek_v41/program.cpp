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
                     built.overrides, built.trainable),
      config(given),
      options(built) {}

kernels::Implementation ModelBuilder::choose(const std::string& operation, const std::string& shape,
                                             kernels::Implementation fastest, const std::vector<kernels::Candidate>& candidates) {
  const auto same = [&](const KernelCall& call) { return call.operation == operation && call.shape == shape; };
  auto call = std::ranges::find_if(kernel_calls, same);
  if (call == kernel_calls.end()) call = kernel_calls.insert(call, {operation, shape, kernels::choose(fastest, candidates), 0});
  ++call->calls;
  return call->choice.taken;
}

ValueId copy_to_streams(ModelBuilder& builder, const std::string& prefix, ValueId embedded) {
  const int64_t n = builder.text().hc_mult;
  const ValueId streams = builder.program.value(prefix + "streams", {builder.stream_rows(), n, builder.text().hidden_size});
  builder.program.segment(prefix + "copy_to_streams", {embedded}, {streams}, {}, [=](SegmentRun& run) {
    run.make(streams, run.read(embedded).unsqueeze(1).expand({-1, n, -1}));
  });
  return streams;
}

ValueId add_embedding(ModelBuilder& builder, ValueId spans) {
  const TextConfig& text = builder.text();
  const Vocabulary vocabulary = builder.embedding =
      add_vocabulary(builder, "model.embed.weight", text.vocab_size, text.hidden_size);
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
  return copy_to_streams(builder, "", embedded);
}

namespace {

// What the axes must divide.
void check_degrees(const TextConfig& text, const engine::Layout& layout, bool cached, bool has_draft_layers) {
  const int64_t tp = layout.size("tp"), ep = layout.size("ep"),
                index_heads = text.index_source_layer_ids.empty() ? 0 : text.index_n_heads;
  std::vector<std::string> errors;
  const auto divides = [&](const char* key, int64_t size) {
    if (size % tp == 0) return;
    std::vector<int64_t> accepted;
    for (int64_t degree = 1; degree <= size; ++degree) {
      if (text.num_attention_heads % degree == 0 && text.o_groups % degree == 0 && index_heads % degree == 0)
        accepted.push_back(degree);
    }
    errors.push_back(fmt::format("parallel.tp {} does not divide {} {}; accepted: {}", tp, key, size, fmt::join(accepted, ", ")));
  };
  divides("num_attention_heads", text.num_attention_heads);
  divides("o_groups", text.o_groups);
  if (index_heads > 0) divides("index_n_heads", index_heads);
  if (has_draft_layers && ep > text.draft.n_routed_experts)
    errors.push_back(
        fmt::format("parallel.ep {} is more than the {} routed experts of the draft layers", ep, text.draft.n_routed_experts));
  if (ep > text.n_routed_experts)
    errors.push_back(fmt::format("parallel.ep {} is more than the {} routed experts", ep, text.n_routed_experts));
  HP_CHECK(!cached || layout.size("cp") == 1, "a cached program over cp");
  if (!errors.empty()) throw ConfigError("{}", fmt::join(errors, "\n"));
}

void check_draft_layers(const TextConfig& text) {
  const DraftConfig& draft = text.draft;
  std::vector<std::string> errors;
  const auto refuse = [&](const std::string& why) { errors.push_back("draft layers (train.loss.draft): " + why); };
  if (text.num_nextn_predict_layers == 0) refuse("the model has none, num_nextn_predict_layers is 0");
  const auto positive = [&](const char* key, int64_t value) {
    if (value == 0) refuse(fmt::format("{} must be at least 1, and is 0 or missing", key));
  };
  if (errors.empty()) {
    positive("dspark_block_size", draft.block_size);
    positive("dspark_markov_rank", draft.markov_rank);
    positive("dspark_n_routed_experts", draft.n_routed_experts);
    positive("dspark_num_experts_per_tok", draft.num_experts_per_tok);
    if (draft.num_experts_per_tok > draft.n_routed_experts)
      refuse(fmt::format("dspark_num_experts_per_tok {} is more than dspark_n_routed_experts {}", draft.num_experts_per_tok,
                         draft.n_routed_experts));
    if (draft.noise_token_id >= text.vocab_size)
      refuse(fmt::format("dspark_noise_token_id {} is outside the vocabulary of {}", draft.noise_token_id, text.vocab_size));
    if (draft.target_layer_ids.empty() || !std::ranges::is_sorted(draft.target_layer_ids, std::less_equal<>()) ||
        draft.target_layer_ids.back() >= text.num_hidden_layers)
      refuse(fmt::format("dspark_target_layer_ids [{}] must name at least one layer, rise and be below num_hidden_layers {}",
                         fmt::join(draft.target_layer_ids, ", "), text.num_hidden_layers));
  }
  if (!errors.empty()) throw ConfigError("{}", fmt::join(errors, "\n"));
}

}  // namespace

ModelProgram build_program(const ModelConfig& config, const ProgramOptions& options) {
  ModelProgram model{config, options, {}, {}};
  ModelBuilder builder(model.config, model.options);
  if (builder.has_draft_layers()) check_draft_layers(config.text);
  check_degrees(config.text, options.layout, options.cached, builder.has_draft_layers());
  add_inputs(builder, /*text=*/true, config.vision.has_value());
  add_rope_tables(builder);
  ValueId spans;
  if (config.vision) {
    spans = launch_halo(builder, "spans", "stage", add_vision(builder), builder.inputs.spans);
    builder.program.wait(spans);
  }
  const int64_t layers = config.text.num_hidden_layers;
  // Also where draft layers do not learn: that they do changes nothing else, to the bit.
  const auto is_target = [&](int64_t layer) { return std::ranges::count(config.text.draft.target_layer_ids, layer) > 0; };
  BlockBorder border{add_embedding(builder, spans), {}};
  border.pre = add_first_mix(builder, "pre", border.streams);
  for (int64_t layer = 0; layer < layers; ++layer) {
    const Block block = builder.block(layer);
    if (builder.has_draft_layers() && is_target(layer)) add_draft_target(builder, border.streams);
    builder.program.begin_region(block.name);
    if (config.text.engram_index(layer)) border.streams = add_engram(builder, layer, border.streams);
    const auto [streams, attn] = enter_block(builder, block, border);
    const ValueId attn_out = add_attention(builder, layer, attn.x);
    const auto [mid, ffn] = add_mix_boundary(builder, block, block.name + ".mid", attn, attn_out, streams, "ffn");
    builder.program.close_unit(block.name);
    const ValueId ffn_out = add_moe(builder, block, ffn.x);
    const bool is_read = layer + 1 == layers || is_target(layer + 1) || config.text.engram_index(layer + 1);
    border = leave_block(builder, block, ffn, ffn_out, mid, is_read);
    builder.program.end_region();
  }
  const ValueId final_hidden = add_head(builder, border.streams, border.pre);
  add_auxiliary_losses(builder);
  if (builder.has_draft_layers()) add_draft_layers(builder, final_hidden);
  builder.check_overrides();
  model.inputs = builder.inputs;
  model.kernel_calls = builder.kernel_calls;
  model.program = std::move(builder.program).build();
  declare_footprints(model.program, config, options);
  return model;
}

ModelProgram build_draft_program(const ModelConfig& config, const ProgramOptions& options) {
  ModelProgram model{config, options, {}, {}};
  ModelBuilder builder(model.config, model.options);
  check_degrees(config.text, options.layout, options.cached, true);
  const int64_t n = config.text.hc_mult, d = config.text.hidden_size;
  add_inputs(builder, /*text=*/true, /*vision=*/false);
  add_rope_tables(builder);
  const auto given = [&](const std::string& name, engine::Shape shape) {
    return builder.program.input(name, engine::ValueKind::kDiscrete, std::move(shape));
  };
  ModelInputs::Draft& in = builder.inputs.draft;
  for (int64_t layer : config.text.draft.target_layer_ids) {
    in.target_streams.push_back(given(layer_name(layer) + ".entering", {builder.stream_rows(), n, d}));
    add_draft_target(builder, in.target_streams.back());
  }
  in.final_hidden = given("final_hidden.all", {"tokens", d});
  builder.embedding = add_vocabulary(builder, "model.embed.weight", config.text.vocab_size, d);
  builder.add_lm_head();
  builder.program.close_unit("vocabulary");
  add_draft_layers(builder, in.final_hidden);
  model.inputs = builder.inputs;
  model.program = std::move(builder.program).build();
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
