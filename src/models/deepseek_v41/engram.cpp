#include "kernels/engram/op.h"

#include "models/deepseek_v41/builder.h"

namespace hyperparallel::models::deepseek_v41 {

using engine::ExchangeKind;
using engine::Initialiser;
using engine::ParameterId;
using engine::SegmentRun;
using engine::ValueId;

ValueId add_engram(ModelBuilder& builder, int64_t layer, ValueId streams) {
  const TextConfig& text = builder.text();
  const int64_t n = text.hc_mult, d = text.hidden_size, columns = text.engram_columns(), width = text.engram_head_dim;
  const int64_t which = *text.engram_index(layer);
  const std::string prefix = layer_parameter(layer) + "engram.", name = layer_name(layer) + ".engram";
  const double table_std = builder.config.switches.initialisation.engram_std;
  const ParameterId table = builder.program.parameter({prefix + "embed.weight",
                                                       {text.engram_num_embeddings[which], width},
                                                       engine::ParameterUse::kWeight,
                                                       false,
                                                       Initialiser::normal(table_std > 0 ? table_std : builder.std())});
  builder.program.close_unit(name + ".embed");

  // The owner of a row looks it up; rows travel to the rank of their token.
  const ValueId ids = builder.inputs.engram_rows, closed = builder.inputs.closed;
  const ValueId found = builder.program.value(name + ".found", {"tokens", columns * width});
  builder.program.segment(name + ".lookup", {ids}, {found}, {table}, [=](SegmentRun& run) {
    const at::Tensor rows = run.read(ids).select(1, which).reshape({-1});  // [tokens * columns]
    run.make(found, engine::embedding(rows, run.weight(table)).view({-1, columns * width}));
  });
  const ValueId rows = builder.program.launch(name + ".rows", ExchangeKind::kAllToAll, "ep", found);
  builder.program.wait(rows);

  const ParameterId wkv = builder.weight(prefix + "wkv.weight", {(n + 1) * d, columns * width});
  const ParameterId q_weight = builder.leaf(prefix + "q_weight", {n, d}, Initialiser::fill(1.0));
  const ParameterId k_weight = builder.leaf(prefix + "k_weight", {n, d}, Initialiser::fill(1.0));
  const ValueId out = builder.program.value(layer_name(layer) + ".engram_out", {"tokens", n, d});
  builder.program.segment(name + ".write", {rows, streams, closed}, {out}, {wkv, q_weight, k_weight},
                          [=, eps = text.rms_norm_eps](SegmentRun& run) {
                            const at::Tensor kv = engine::linear(run.read(rows), run.weight(wkv));  // [tokens, (n + 1) hidden]
                            const at::Tensor key = kv.narrow(1, 0, n * d).view({-1, n, d}), value = kv.narrow(1, n * d, d);
                            auto [gate, written] = kernels::engram_write(run.read(streams), key, value, run.parameter(q_weight),
                                                                         run.parameter(k_weight), run.read(closed), eps);
                            run.observe(layer_name(layer) + ".engram_gate", [&gate = gate] { return gate; });
                            run.make(out, written);
                          });
  return out;
}

}  // namespace hyperparallel::models::deepseek_v41
