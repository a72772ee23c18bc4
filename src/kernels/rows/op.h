// Rows of a matrix by index: the scatter half of embedding, routing and sparse attention.
//
//   scatter_add_rows(target, ids, rows):   for i in 0..n-1 in order:  if ids[i] >= 0:  target[ids[i], :] += rows[i, :]
//
// Additions into one row happen in the order of i whatever the number of threads, so the bits do not depend on it.
#pragma once

#include "base/aten.h"

namespace hyperparallel::kernels {

// target [m, d] FP32 or FP64, contiguous, changed in place; ids [n] int64; rows [n, d] of any floating type. A negative id is
// skipped. Throws InternalError when an id is not below m or shapes disagree.
void scatter_add_rows(at::Tensor& target, const at::Tensor& ids, const at::Tensor& rows);

// rows[i, :] = source[ids[i], :], zeros where ids[i] is negative. source [m, d]; ids int64 [n] -> [n, d]. Differentiable in
// source; the gradient sums in FP32 (FP64) by scatter_add_rows.
at::Tensor gather_rows(const at::Tensor& source, const at::Tensor& ids);

namespace reference {
void scatter_add_rows(at::Tensor& target, const at::Tensor& ids, const at::Tensor& rows);
}

}  // namespace hyperparallel::kernels
