#include "kernels/rows/op.h"

namespace hyperparallel::kernels::reference {

void scatter_add_rows(at::Tensor& target, const at::Tensor& ids, const at::Tensor& rows) {
  const at::Tensor kept = ids.ge(0).nonzero().flatten();
  target.index_add_(0, ids.index_select(0, kept), rows.index_select(0, kept).to(target.scalar_type()));
}

}  // namespace hyperparallel::kernels::reference
