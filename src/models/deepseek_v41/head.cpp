#include "kernels/mhc/op.h"
#include "kernels/norm/op.h"
#include "kernels/rows/op.h"
#include "kernels/types.h"
#include "models/deepseek_v41/builder.h"

namespace hyperparallel::models::deepseek_v41 {

using engine::ParameterId;
using engine::SegmentRun;
using engine::ValueId;

void add_head(ModelBuilder& builder, ValueId streams, ValueId pre) {
  const TextConfig& text = builder.text();
  builder.partial = builder.layout().sequence_parallel;
  const ParameterId norm = builder.gain("model.norm.weight", text.hidden_size);
  const ParameterId head = builder.weight("lm_head.weight", {text.vocab_size, text.hidden_size}, kByWord);
  builder.program.close_unit("head");
  const ValueId normed = builder.program.value("final_hidden", {builder.stream_rows(), text.hidden_size});
  builder.program.segment("final_norm", {streams, pre}, {normed}, {norm}, [=, eps = text.rms_norm_eps](SegmentRun& run) {
    run.make(normed, kernels::rms_norm(kernels::collapse(run.read(streams), run.read(pre)), run.parameter(norm), eps));
  });
  const ValueId hidden = enter_tokens(builder, "final_hidden.all", normed);
  const int64_t first = builder.layout().begin(text.vocab_size, "tp");
  if (builder.options.cached) {
    const ValueId rows = builder.inputs.logit_rows, logits = builder.program.value("logits", {"documents", text.vocab_size});
    builder.program.segment("logits", {hidden, rows}, {logits}, {head}, [=](SegmentRun& run) {
      run.make(logits,
               kernels::to_math(engine::linear(kernels::gather_rows(run.read(hidden), run.read(rows)), run.weight(head))));
    });
    builder.program.output(logits);
    builder.inputs.logits = logits;
    return;
  }
  const ValueId targets = builder.inputs.targets, loss = builder.program.value("loss", {});
  builder.program.segment(
      "loss", {hidden, targets}, {loss}, {head}, [=, chunk = builder.options.cross_entropy_chunk](SegmentRun& run) {
        const at::Tensor token_loss =
            engine::linear_cross_entropy(run.read(hidden), run.read(targets), run.weight(head), chunk, {&run.group("tp"), first});
        run.observe("token_loss", [&] { return token_loss; });
        run.observe("logits", [&] { return kernels::to_math(engine::linear(run.read(hidden), run.weight(head))); });
        run.make(loss, token_loss.sum());
      });
  builder.program.loss(loss);
}

}  // namespace hyperparallel::models::deepseek_v41
