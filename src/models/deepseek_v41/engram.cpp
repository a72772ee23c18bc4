#include "kernels/engram/op.h"

#include <fmt/format.h>

#include "kernels/rows/op.h"
#include "models/deepseek_v41/builder.h"

namespace hyperparallel::models::deepseek_v41 {

using engine::ExchangeKind;
using engine::Initialiser;
using engine::ParameterId;
using engine::SegmentRun;
using engine::UpdateHint;
using engine::ValueId;

constexpr double kTableLrScale = 5;  // V4.1 report 2.5: n-grams are rare

ValueId add_engram(ModelBuilder& builder, int64_t layer, ValueId streams) {
  const TextConfig& text = builder.text();
  const int64_t n = text.hc_mult, d = text.hidden_size, columns = text.engram_columns(), width = text.engram_head_dim;
  const int64_t which = *text.engram_index(layer);
  const std::string prefix = layer_parameter(layer) + "engram.", name = layer_name(layer) + ".engram";
  const double table_std = builder.config.switches.initialisation.engram_std;
  const std::string table_name = prefix + "embed.weight";
  const bool stays = builder.config.switches.engram_storage != EngramStorage::kDevice;  // with the owners of its rows
  bool whole = false;
  if (!stays) whole = builder.way_of({table_name}, {{kByRow}, {Cut{}}}) == 1;
  static const Cut kWhole;
  const Cut& cut = stays ? kByOwner : whole ? kWhole : kByRow;
  const int64_t rows = text.engram_num_embeddings[which], first = whole ? 0 : builder.layout().begin(rows, cut.axis);
  builder.partial = true;
  engine::ParameterSpec spec;
  spec.name = table_name;
  spec.shape = {rows, width};
  spec.use = stays ? engine::ParameterUse::kTable : engine::ParameterUse::kWeight;
  spec.initialiser = Initialiser::normal(table_std > 0 ? table_std : builder.std());
  spec.update = UpdateHint::table(kTableLrScale);
  const ParameterId table = builder.parameter(std::move(spec), cut);
  builder.program.close_unit(name + ".embed");
  if (stays) builder.inputs.engram[which].table = table;

  // Every row that this rank's tokens need goes to its owner by number, once; the owner looks it up; the rows come back. Of a
  // whole table each rank looks up its own.
  engine::ProgramBuilder& program = builder.program;
  const ModelInputs::Engram& inputs = builder.inputs.engram[which];
  const std::string unique = program.spec(inputs.rows).shape[0].symbol, asked = name + ".asked";
  ValueId receive_rows, ids = inputs.rows;
  if (!whole) {
    const std::vector<int64_t> ones(builder.layout().size(cut.axis), 1);
    receive_rows = program.exchange(name + ".counts", ExchangeKind::kAllToAll, cut.axis, inputs.send_rows,
                                    static_cast<int64_t>(ones.size()), ones, ones);
    ids = program.exchange(name + ".ids", ExchangeKind::kAllToAll, cut.axis, inputs.rows, asked, inputs.send_rows, receive_rows);
  }
  const ValueId found = program.value(name + ".found", {whole ? unique : asked, width});
  program.segment(name + ".lookup", {ids}, {found}, {table}, [=](SegmentRun& run) {
    const at::Tensor own = run.read(ids) - first;
    if (stays) {
      run.make(found, engine::table_rows(own, run.weight(table), run.compute_type()));
    } else {
      run.make(found, engine::embedding(own, run.weight(table)));
    }
  });
  ValueId answer = found;
  if (!whole) {
    answer = program.exchange(name + ".rows", ExchangeKind::kAllToAll, cut.axis, found, name + ".unique", receive_rows,
                              inputs.send_rows);
  }

  const ParameterId wkv = builder.weight(prefix + "wkv.weight", {(n + 1) * d, columns * width});
  const ParameterId q_weight = builder.leaf(prefix + "q_weight", {n, d}, Initialiser::fill(1.0), UpdateHint::gain());
  const ParameterId k_weight = builder.leaf(prefix + "k_weight", {n, d}, Initialiser::fill(1.0), UpdateHint::gain());
  const ValueId closed = builder.inputs.closed, places = inputs.found;
  const ValueId shard = enter_shard(builder, name + ".streams", streams);
  const ValueId out = program.value(leaving_shard(builder, layer_name(layer) + ".engram_out"), {"shard", n, d});
  const auto how = builder.choose("engram", fmt::format("{} streams of {}", n, d), builder.options.kernels.engram,
                                  kernels::engram_candidates());
  program.segment(
      name + ".write", {answer, places, shard, closed}, {out}, {wkv, q_weight, k_weight},
      [=, eps = text.rms_norm_eps, how = how](SegmentRun& run) {
        const at::Tensor looked_up = kernels::gather_rows(run.read(answer), run.read(places)).view({-1, columns * width});
        const at::Tensor kv = engine::linear(looked_up, run.weight(wkv));  // [shard, (n + 1) hidden]
        auto [gate, written] = kernels::engram_write(run.read(shard), kv, run.parameter(q_weight), run.parameter(k_weight),
                                                     run.read(closed), eps, how);
        run.observe(layer_name(layer) + ".engram_gate", "shard", [&gate = gate] { return gate; });
        run.make(out, written);
      });
  return leave_shard(builder, layer_name(layer) + ".engram_out", out);
}

}  // namespace hyperparallel::models::deepseek_v41
