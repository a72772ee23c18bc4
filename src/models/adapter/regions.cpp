// Borders of regions: NOTE [Regions] in builder.h.
#include "engine/executor.h"
#include "kernels/rows/op.h"
#include "models/adapter/builder.h"

namespace hyperparallel::models {

using engine::ExchangeKind;
using engine::SegmentRun;
using engine::ValueId;

ValueId enter_tokens(DecoderBuilder& builder, const std::string& name, ValueId x) {
  if (!builder.layout().sequence_parallel) return builder.program.exchange(name, ExchangeKind::kEnter, "tp", x);
  return builder.program.exchange(name, ExchangeKind::kAllGather, "tp", x, builder.rows.tokens, builder.rows.tp_rows);
}

ValueId leave_tokens(DecoderBuilder& builder, const std::string& name, ValueId partial) {
  if (!builder.layout().sequence_parallel) return builder.program.exchange(name, ExchangeKind::kAllReduce, "tp", partial);
  return builder.program.exchange(name, ExchangeKind::kReduceScatter, "tp", partial, builder.rows.shard, builder.rows.tp_rows);
}

ValueId enter_shard(DecoderBuilder& builder, const std::string& name, ValueId x) {
  if (builder.layout().sequence_parallel) return x;
  return builder.program.exchange(name, ExchangeKind::kSplit, "tp", x, builder.rows.shard, builder.rows.tp_rows);
}

ValueId leave_shard(DecoderBuilder& builder, const std::string& name, ValueId x) {
  if (builder.layout().sequence_parallel) return x;
  return builder.program.exchange(name, ExchangeKind::kCollect, "tp", x, builder.rows.tokens, builder.rows.tp_rows);
}

std::string leaving_shard(const DecoderBuilder& builder, const std::string& name) {
  return builder.layout().sequence_parallel ? name : name + ".shard";
}

Halo add_halo_inputs(DecoderBuilder& builder, const std::string& name, const std::string& axis) {
  const int64_t ranks = builder.layout().size(axis);
  const auto discrete = [&](const char* which, engine::Shape shape) {
    return builder.program.input(name + which, engine::ValueKind::kDiscrete, std::move(shape));
  };
  return {discrete(".send_index", {name + ".sent"}), discrete(".send_rows", {ranks}), discrete(".receive_rows", {ranks})};
}

ValueId launch_halo(DecoderBuilder& builder, const std::string& name, const std::string& axis, ValueId own, const Halo& halo) {
  engine::ProgramBuilder& program = builder.program;
  const engine::ValueSpec spec = program.spec(own);
  engine::Shape shape = spec.shape;
  shape[0] = name + ".sent";
  const ValueId sent = spec.kind == engine::ValueKind::kDiscrete ? program.choice(name + ".sent", shape)
                                                                 : program.value(name + ".sent", shape),
                index = halo.send_index;
  program.segment(name + ".send", {own, index}, {sent}, {},
                  [=](SegmentRun& run) { run.make(sent, kernels::gather_rows(run.read(own), run.read(index))); });
  return program.launch(name, ExchangeKind::kAllToAll, axis, sent, name + ".received", halo.send_rows, halo.receive_rows);
}

}  // namespace hyperparallel::models
