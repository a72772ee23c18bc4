#include "models/adapter/builder.h"

#include "engine/executor.h"
#include "kernels/types.h"

namespace hyperparallel::models {

using engine::Initialiser;
using engine::ParameterId;
using engine::ParameterUse;
using engine::SegmentRun;
using engine::ValueId;
using engine::ValueKind;

std::string layer_name(int64_t layer) {
  return "layers." + std::to_string(layer);
}
std::string layer_parameter(int64_t layer) {
  return "model.layers." + std::to_string(layer) + ".";
}

ParameterId DecoderBuilder::parameter(engine::ParameterSpec spec, const Cut& cut) {
  spec.cut_axis = cut.axis;
  spec.cut_dim = cut.dim;
  spec.partial_over_tp = partial && cut.axis.empty() && spec.use != ParameterUse::kState;
  return program.parameter(std::move(spec));
}
ParameterId DecoderBuilder::weight(const std::string& name, std::vector<int64_t> shape, const Cut& cut) {
  return parameter({name, std::move(shape), ParameterUse::kWeight, false, Initialiser::normal(std())}, cut);
}
ParameterId DecoderBuilder::leaf(const std::string& name, std::vector<int64_t> shape, Initialiser start) {
  return parameter({name, std::move(shape), ParameterUse::kLeaf, false, std::move(start)});
}
ParameterId DecoderBuilder::master_leaf(const std::string& name, std::vector<int64_t> shape, Initialiser start, const Cut& cut) {
  return parameter({name, std::move(shape), ParameterUse::kLeaf, true, std::move(start)}, cut);
}
ParameterId DecoderBuilder::gain(const std::string& name, int64_t size) {
  return leaf(name, {size}, Initialiser::fill(1.0));
}
ParameterId DecoderBuilder::state(const std::string& name, std::vector<int64_t> shape) {
  return parameter({name, std::move(shape), ParameterUse::kState, true, Initialiser::fill(0.0)});
}

TokenInputs add_token_inputs(DecoderBuilder& builder, bool targets) {
  TokenInputs in;
  in.ids = builder.program.input("ids", ValueKind::kDiscrete, {"tokens"});
  if (targets) in.targets = builder.program.input("targets", ValueKind::kDiscrete, {"tokens"});
  in.positions = builder.program.input("positions", ValueKind::kDiscrete, {"tokens"});
  in.tp_rows = builder.tp_rows = builder.program.input("tp_rows", ValueKind::kDiscrete, {builder.layout().size("tp")});
  return in;
}

Vocabulary add_vocabulary(DecoderBuilder& builder, const std::string& name, int64_t words, int64_t width) {
  return {builder.weight(name, {words, width}, kByWord), builder.layout().begin(words, "tp"), builder.local(words, kByWord)};
}

at::Tensor look_up(SegmentRun& run, const Vocabulary& vocabulary, const at::Tensor& ids) {
  const at::Tensor own = ids - vocabulary.first;
  return engine::embedding(own.masked_fill(own.ge(vocabulary.words), -1), run.weight(vocabulary.table));
}

void add_loss(DecoderBuilder& builder, const Vocabulary& head, ValueId hidden, ValueId targets, int64_t chunk) {
  const ValueId loss = builder.program.value("loss", {});
  builder.program.segment("loss", {hidden, targets}, {loss}, {head.table}, [=](SegmentRun& run) {
    const at::Tensor token_loss = engine::linear_cross_entropy(run.read(hidden), run.read(targets), run.weight(head.table), chunk,
                                                               {&run.group("tp"), head.first});
    run.observe("token_loss", [&] { return token_loss; });
    run.observe("logits", [&] { return kernels::to_math(engine::linear(run.read(hidden), run.weight(head.table))); });
    run.make(loss, token_loss.sum());
  });
  builder.program.loss(loss);
}

}  // namespace hyperparallel::models
