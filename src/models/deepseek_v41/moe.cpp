#include "kernels/moe/op.h"

#include "kernels/types.h"
#include "models/deepseek_v41/builder.h"

namespace hyperparallel::models::deepseek_v41 {

using engine::ExchangeKind;
using engine::ParameterId;
using engine::SegmentRun;
using engine::ValueId;

namespace {

// How many tokens of each modality chose each expert, int64 [2, experts]: text, image. Padding counts nowhere.
at::Tensor loads_of(const at::Tensor& expert_ids, const at::Tensor& image, const at::Tensor& padding, int64_t experts) {
  const auto count = [&](const at::Tensor& tokens) {
    return at::bincount(expert_ids.index_select(0, tokens.nonzero().flatten()).flatten(), {}, experts);
  };
  const at::Tensor real = padding.logical_not();
  return at::stack({count(real.logical_and(image.logical_not())), count(real.logical_and(image))});
}

}  // namespace

ValueId add_moe(ModelBuilder& builder, int64_t layer, ValueId x) {
  const TextConfig& text = builder.text();
  const int64_t d = text.hidden_size, width = text.moe_intermediate_size, experts = text.n_routed_experts,
                k = text.num_experts_per_tok;
  const std::string prefix = layer_parameter(layer) + "ffn.", name = layer_name(layer) + ".ffn";
  engine::ProgramBuilder& program = builder.program;
  const std::string choices = "choices";  // tokens * k

  // Which experts, with which weights, and the order of rows by expert.
  const ParameterId gate = builder.weight(prefix + "gate.weight", {experts, d});
  const ParameterId bias = builder.state(prefix + "gate.bias", {experts}),
                    bias_vl = builder.state(prefix + "gate.bias_vl", {experts});
  const ParameterId s1 = builder.weight(prefix + "shared_experts.w1.weight", {width, d});
  const ParameterId s3 = builder.weight(prefix + "shared_experts.w3.weight", {width, d});
  const ParameterId s2 = builder.weight(prefix + "shared_experts.w2.weight", {d, width});
  program.close_unit(name);
  const ValueId ids = program.choice(layer_name(layer) + ".expert_ids", {"tokens", k});
  const ValueId order = program.choice(name + ".order", {choices}), offsets = program.choice(name + ".offsets", {experts + 1});
  const ValueId sent = program.value(name + ".sent", {choices, d}),
                sent_weights = program.value(name + ".sent_weights", {choices});
  const ValueId image = builder.inputs.image, padding = builder.inputs.padding;
  program.segment(
      name + ".route", {x, image, padding}, {ids, order, offsets, sent, sent_weights}, {gate, bias, bias_vl},
      [=, temperature = text.gate_temp, normalise = text.norm_topk_prob, scale = text.routed_scaling_factor](SegmentRun& run) {
        const at::Tensor& input = run.read(x);
        const at::Tensor scores = kernels::router_scores(engine::linear(kernels::to_math(input), run.weight(gate)), temperature);
        const at::Tensor chosen = run.choose(ids, [&] {
          return kernels::choose_experts(scores, run.parameter(bias), run.parameter(bias_vl), run.read(image), k);
        });
        kernels::RowOrder rows;
        const at::Tensor row_order = run.choose(order, [&] { return (rows = kernels::sort_rows(chosen, experts)).order; });
        run.choose(offsets, [&] { return rows.offsets; });
        const at::Tensor weights = kernels::expert_weights(scores, chosen, normalise, scale);  // [tokens, k]
        run.make(sent, kernels::dispatch_rows(input, row_order, k));
        run.make(sent_weights, weights.reshape({-1}).index_select(0, row_order));
        run.count(layer_name(layer) + ".loads", loads_of(chosen, run.read(image), run.read(padding), experts));
        run.observe(layer_name(layer) + ".router_scores", [&] { return scores; });
        run.observe(layer_name(layer) + ".expert_weights", [&] { return weights; });
      });
  const ValueId rows = program.launch(name + ".rows", ExchangeKind::kAllToAll, "ep", sent);
  const ValueId row_weights = program.launch(name + ".row_weights", ExchangeKind::kAllToAll, "ep", sent_weights);
  program.wait(rows);
  program.wait(row_weights);

  const ParameterId w1 = builder.weight(prefix + "experts.w1.weight", {experts, width, d});
  const ParameterId w3 = builder.weight(prefix + "experts.w3.weight", {experts, width, d});
  const ParameterId w2 = builder.weight(prefix + "experts.w2.weight", {experts, d, width});
  program.close_unit(name + ".experts");
  const ValueId computed = program.value(name + ".computed", {choices, d});
  const double limit = text.swiglu_limit;
  program.segment(name + ".experts", {rows, row_weights, offsets}, {computed}, {w1, w3, w2}, [=](SegmentRun& run) {
    const at::Tensor &input = run.read(rows), &group = run.read(offsets);
    const at::Tensor g = engine::grouped_linear(input, group, run.weight(w1)),
                     u = engine::grouped_linear(input, group, run.weight(w3));
    run.make(computed,
             engine::grouped_linear(kernels::clamped_swiglu(g, u, run.read(row_weights), limit), group, run.weight(w2)));
  });
  const ValueId returned = program.launch(name + ".returned", ExchangeKind::kAllToAll, "ep", computed);
  program.wait(returned);

  const ValueId out = program.value(layer_name(layer) + ".ffn_out", {"tokens", d});
  program.segment(name + ".combine", {x, returned, order}, {out}, {s1, s3, s2}, [=](SegmentRun& run) {
    const at::Tensor& input = run.read(x);
    const at::Tensor g = engine::linear(input, run.weight(s1)), u = engine::linear(input, run.weight(s3));
    const at::Tensor shared = engine::linear(kernels::clamped_swiglu(g, u, {}, limit), run.weight(s2));
    run.make(out,
             (kernels::combine_rows(run.read(returned), run.read(order), k) + kernels::to_math(shared)).to(input.scalar_type()));
  });
  return out;
}

}  // namespace hyperparallel::models::deepseek_v41
