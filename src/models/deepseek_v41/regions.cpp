// Borders of regions: NOTE [Regions] in program.h.
#include "kernels/rows/op.h"
#include "models/deepseek_v41/builder.h"

namespace hyperparallel::models::deepseek_v41 {

using engine::ExchangeKind;
using engine::SegmentRun;
using engine::ValueId;

ValueId enter_tokens(ModelBuilder& builder, const std::string& name, ValueId x) {
  if (!builder.layout().sequence_parallel) return builder.program.exchange(name, ExchangeKind::kEnter, "tp", x);
  return builder.program.exchange(name, ExchangeKind::kAllGather, "tp", x, "tokens", builder.inputs.tp_rows);
}

ValueId leave_tokens(ModelBuilder& builder, const std::string& name, ValueId partial) {
  if (!builder.layout().sequence_parallel) return builder.program.exchange(name, ExchangeKind::kAllReduce, "tp", partial);
  return builder.program.exchange(name, ExchangeKind::kReduceScatter, "tp", partial, "shard", builder.inputs.tp_rows);
}

ValueId enter_shard(ModelBuilder& builder, const std::string& name, ValueId x) {
  if (builder.layout().sequence_parallel) return x;
  return builder.program.exchange(name, ExchangeKind::kSplit, "tp", x, "shard", builder.inputs.tp_rows);
}

ValueId leave_shard(ModelBuilder& builder, const std::string& name, ValueId x) {
  if (builder.layout().sequence_parallel) return x;
  return builder.program.exchange(name, ExchangeKind::kCollect, "tp", x, "tokens", builder.inputs.tp_rows);
}

ValueId launch_halo(ModelBuilder& builder, const std::string& name, const std::string& axis, ValueId own,
                    const ModelInputs::Halo& halo) {
  engine::ProgramBuilder& program = builder.program;
  const engine::ValueSpec spec = program.spec(own);
  engine::Shape shape = spec.shape;
  shape[0] = name + ".sent";
  const ValueId sent = program.value(name + ".sent", shape), index = halo.send_index;
  program.segment(name + ".send", {own, index}, {sent}, {},
                  [=](SegmentRun& run) { run.make(sent, kernels::gather_rows(run.read(own), run.read(index))); });
  return program.launch(name, ExchangeKind::kAllToAll, axis, sent, name + ".received", halo.send_rows, halo.receive_rows);
}

}  // namespace hyperparallel::models::deepseek_v41
