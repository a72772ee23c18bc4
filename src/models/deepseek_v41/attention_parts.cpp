#include "models/deepseek_v41/attention_parts.h"

#include <fmt/format.h>

#include "kernels/norm/op.h"
#include "kernels/rows/op.h"

namespace hyperparallel::models::deepseek_v41 {

kernels::AttentionShape attention_shape(ModelBuilder& builder) {
  const TextConfig& text = builder.text();
  const auto taken = builder.choose("attention",
                                    fmt::format("{} heads of {}, window {}", builder.local(text.num_attention_heads, kByHead),
                                                text.head_dim, text.sliding_window),
                                    builder.options.kernels.attention, kernels::attention_candidates());
  return {text.sliding_window, builder.options.attention_chunk, taken != kernels::Implementation::kReference};
}

using engine::Initialiser;
using engine::ParameterId;
using engine::SegmentRun;
using engine::UpdateHint;
using engine::ValueId;

kernels::RopeTable table_of(SegmentRun& run, const RopeValues& rope) {
  return {run.read(rope.cos), run.read(rope.sin)};
}

UpdateHint update_by(const std::string& name, int64_t count, int64_t rows) {
  return UpdateHint::blocks(name, std::vector<int64_t>(count, rows));
}

at::Tensor with_received(const at::Tensor& own, const at::Tensor& received) {
  return received.size(0) == 0 ? own : at::cat({own, received});
}

at::Tensor arranged_keys(const at::Tensor& own, const at::Tensor& received, const at::Tensor& rows) {
  if (received.size(0) == 0 && rows.size(0) == own.size(0)) return own;
  return kernels::gather_rows(with_received(own, received), rows);
}

QueryValues add_queries(ModelBuilder& builder, const std::string& name, const std::string& prefix, ValueId x,
                        const RopeValues& rope) {
  const TextConfig& text = builder.text();
  const int64_t heads = builder.local(text.num_attention_heads, kByHead), hd = text.head_dim;
  const ParameterId wq_a = builder.weight(prefix + "wq_a.weight", {text.q_lora_rank, text.hidden_size});
  const ParameterId norm = builder.gain(prefix + "q_norm.weight", text.q_lora_rank);
  const ParameterId wq_b = builder.weight(prefix + "wq_b.weight", {text.num_attention_heads * hd, text.q_lora_rank}, kByHead,
                                          update_by("head", text.num_attention_heads, hd));
  const QueryValues made{builder.program.value(name + ".q_res", {builder.rows.tokens, text.q_lora_rank}),
                         builder.program.value(name + ".q", {builder.rows.tokens, heads, hd})};
  builder.program.segment(name + ".queries", {x, rope.cos, rope.sin}, {made.residual, made.q}, {wq_a, norm, wq_b},
                          [=, eps = text.rms_norm_eps](SegmentRun& run) {
                            const at::Tensor z =
                                kernels::rms_norm(engine::linear(run.read(x), run.weight(wq_a)), run.parameter(norm), eps);
                            const at::Tensor wide = engine::linear(z, run.weight(wq_b)).view({-1, heads, hd});
                            run.make(made.residual, z);
                            run.make(made.q, kernels::apply_rope(wide, table_of(run, rope)));
                          });
  return made;
}

at::Tensor AttentionOutput::operator()(SegmentRun& run, const at::Tensor& mixed, const kernels::RopeTable& rope) const {
  const at::Tensor back = kernels::apply_rope(mixed, rope, /*inverse=*/true);
  const at::Tensor low = engine::block_linear(back.reshape({-1, blocks, width}), run.weight(wo_a));
  return engine::linear(low, run.weight(wo_b));
}

AttentionOutput add_attention_output(ModelBuilder& builder, const std::string& prefix) {
  const TextConfig& text = builder.text();
  const int64_t all_heads = text.num_attention_heads, low_rank = text.o_groups * text.o_lora_rank,
                width = all_heads * text.head_dim / text.o_groups;
  const Initialiser sink = Initialiser::fill(builder.config.switches.initialisation.attention_sink);
  return {builder.master_leaf(prefix + "attn_sink", {all_heads}, sink, {}, kByHead),
          builder.weight(prefix + "wo_a.weight", {low_rank, width}, kByHead, update_by("group", text.o_groups, text.o_lora_rank)),
          builder.weight(prefix + "wo_b.weight", {text.hidden_size, low_rank}, kByInput), builder.local(text.o_groups, kByHead),
          width};
}

}  // namespace hyperparallel::models::deepseek_v41
