#include <cmath>

#include "kernels/engram/op.h"
#include "kernels/types.h"

namespace hyperparallel::kernels {

std::pair<at::Tensor, at::Tensor> engram_write_reference(const at::Tensor& streams, const at::Tensor& kv,
                                                         const at::Tensor& q_weight, const at::Tensor& k_weight,
                                                         const at::Tensor& closed, double eps) {
  const int64_t n = streams.size(1), d = streams.size(2);
  const at::Tensor x = to_math(streams), k = to_math(kv.narrow(1, 0, n * d)).view({x.size(0), n, d}), value = kv.narrow(1, n * d, d);
  const at::Tensor gain = to_math(q_weight) * to_math(k_weight);  // [n, d]
  const double scale = std::pow(static_cast<double>(x.size(2)), -0.5);
  const at::Tensor dot =
      (x * gain * k).sum(2) * at::rsqrt(x.square().mean(2) + eps) * at::rsqrt(k.square().mean(2) + eps) * scale;
  const at::Tensor root = at::copysign(dot.abs().clamp_min(1e-6).sqrt(), dot.detach());
  const at::Tensor gate = at::sigmoid(root).masked_fill(closed.unsqueeze(1), 0.0);  // [tokens, n]
  return {gate.detach(), (x + gate.unsqueeze(2) * to_math(value).unsqueeze(1)).to(streams.scalar_type())};
}

}  // namespace hyperparallel::kernels
