#include "kernels/mhc/op.h"

#include <fmt/format.h>

#include "kernels/norm/op.h"
#include "kernels/rows/op.h"
#include "kernels/types.h"
#include "models/deepseek_v41/builder.h"

namespace hyperparallel::models::deepseek_v41 {

using engine::ParameterId;
using engine::SegmentRun;
using engine::ValueId;

std::string ModelBuilder::markov_head() const {
  return has_draft_layers() ? fmt::format("mtp.{}.markov_head.head.weight", text().num_nextn_predict_layers - 1) : "";
}

Vocabulary ModelBuilder::add_lm_head() {
  std::vector<std::string> together;
  if (has_draft_layers()) together.push_back(markov_head());
  return head = add_vocabulary(*this, "lm_head.weight", text().vocab_size, text().hidden_size, engine::UpdateHint::table(),
                               together);
}

ValueId add_head(ModelBuilder& builder, ValueId streams, ValueId pre) {
  const TextConfig& text = builder.text();
  builder.partial = builder.layout().sequence_parallel;
  const ParameterId norm = builder.gain("model.norm.weight", text.hidden_size);
  const Vocabulary head = builder.add_lm_head();
  builder.program.close_unit("head");
  const ValueId normed = builder.program.value("final_hidden", {builder.stream_rows(), text.hidden_size});
  builder.program.segment("final_norm", {streams, pre}, {normed}, {norm}, [=, eps = text.rms_norm_eps](SegmentRun& run) {
    run.make(normed, kernels::rms_norm(kernels::collapse(run.read(streams), run.read(pre)), run.parameter(norm), eps));
  });
  const ValueId hidden = enter_tokens(builder, "final_hidden.all", normed);
  if (builder.options.cached) {
    const ValueId rows = builder.inputs.logit_rows, logits = builder.program.value("logits", {"documents", text.vocab_size});
    builder.program.segment("logits", {hidden, rows}, {logits}, {head.table}, [=](SegmentRun& run) {
      run.make(logits,
               kernels::to_math(engine::linear(kernels::gather_rows(run.read(hidden), run.read(rows)), run.weight(head.table))));
    });
    builder.program.output(logits);
    builder.inputs.logits = logits;
    return hidden;
  }
  add_loss(builder, head, hidden, builder.inputs.targets, builder.options.cross_entropy_chunk, builder.options.losses.z);
  return hidden;
}

}  // namespace hyperparallel::models::deepseek_v41
