#include "kernels/norm/op.h"
#include "kernels/types.h"

namespace hyperparallel::kernels {

at::Tensor rms_norm_reference(const at::Tensor& x, const at::Tensor& gain, double eps) {
  const at::Tensor z = to_math(x);
  return (z * at::rsqrt(z.square().mean(-1, /*keepdim=*/true) + eps)).to(x.scalar_type()) * gain.to(x.scalar_type());
}

}  // namespace hyperparallel::kernels
