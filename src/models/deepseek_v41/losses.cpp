// Losses beside the cross-entropy, docs/model.md, Losses.
#include "kernels/balance/op.h"
#include "models/deepseek_v41/builder.h"

namespace hyperparallel::models::deepseek_v41 {

using engine::ExchangeKind;
using engine::Loss;
using engine::SegmentRun;
using engine::ValueId;

namespace {

// The counts are those of whole sequences on every rank, the shares those of the rank's tokens: the losses of the ranks add up.
void add_balance_loss(ModelBuilder& builder) {
  const ValueId lengths = builder.inputs.sequence_lengths, partial = builder.program.value("balance_loss.partial", {});
  std::vector<ValueId> reads{lengths};
  for (const ModelBuilder::RouterSums& layer : builder.router_sums) reads.insert(reads.end(), {layer.shares, layer.counts});
  builder.program.segment("balance_loss.partial", reads, {partial}, {},
                          [=, layers = builder.router_sums, k = builder.text().num_experts_per_tok](SegmentRun& run) {
                            at::Tensor sum;
                            for (const ModelBuilder::RouterSums& layer : layers) {
                              const at::Tensor loss =
                                  kernels::balance_loss(run.read(layer.shares), run.read(layer.counts), run.read(lengths), k);
                              sum = sum.defined() ? sum + loss : loss;
                            }
                            run.make(partial, sum);
                          });
  const ValueId whole = builder.program.exchange("balance_loss.sum", ExchangeKind::kAllReduce, "tp", partial);
  const ValueId loss = builder.program.value("balance_loss", {});
  builder.program.segment("balance_loss", {whole}, {loss}, {}, [=](SegmentRun& run) { run.make(loss, run.read(whole).clone()); });
  builder.program.loss({loss, "balance", Loss::Per::kSequences, builder.options.losses.balance});
}

void add_indexer_loss(ModelBuilder& builder) {
  const ValueId loss = builder.program.value("indexer_loss", {});
  builder.program.segment("indexer_loss", builder.indexer_losses, {loss}, {},
                          [=, layers = builder.indexer_losses](SegmentRun& run) {
                            at::Tensor sum = run.read(layers.front()).clone();
                            for (size_t i = 1; i < layers.size(); ++i) sum = sum + run.read(layers[i]);
                            run.make(loss, sum);
                          });
  builder.program.loss({loss, "indexer", Loss::Per::kTokens, builder.options.losses.indexer});
}

}  // namespace

void add_auxiliary_losses(ModelBuilder& builder) {
  if (!builder.router_sums.empty()) add_balance_loss(builder);
  if (!builder.indexer_losses.empty()) add_indexer_loss(builder);
}

}  // namespace hyperparallel::models::deepseek_v41
