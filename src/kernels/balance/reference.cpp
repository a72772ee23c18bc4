#include "kernels/balance/op.h"

namespace hyperparallel::kernels {

at::Tensor sequence_shares(const at::Tensor& scores, const at::Tensor& sequence, int64_t sequences) {
  const at::Tensor shares = scores / scores.sum(1, /*keepdim=*/true);
  // Row `sequences` takes those of no sequence.
  const at::Tensor row = sequence.masked_fill(sequence.lt(0), sequences);
  return at::zeros({sequences + 1, scores.size(1)}, scores.options()).index_add(0, row, shares).narrow(0, 0, sequences);
}

at::Tensor sequence_counts(const at::Tensor& expert_ids, const at::Tensor& sequence, int64_t sequences, int64_t experts) {
  const at::Tensor row = sequence.masked_fill(sequence.lt(0), sequences).unsqueeze(1);
  const at::Tensor place = (row * experts + expert_ids).flatten();
  return at::bincount(place, {}, (sequences + 1) * experts).view({sequences + 1, experts}).narrow(0, 0, sequences);
}

at::Tensor balance_loss(const at::Tensor& shares, const at::Tensor& counts, const at::Tensor& length, int64_t k) {
  const at::Tensor tokens = length.clamp_min(1).to(shares.scalar_type()).unsqueeze(1);
  const at::Tensor f = counts.to(shares.scalar_type()) / (tokens * static_cast<double>(k));
  return (f * (shares / tokens)).sum() * static_cast<double>(shares.size(1));
}

}  // namespace hyperparallel::kernels
