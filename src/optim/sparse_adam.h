// Adam for a table of which a step hits few rows: those alone are read and written, whatever the size of the table.
//   m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  row -= lr sqrt(1 - b2^t) / (1 - b1^t) * m / (sqrt(v) + eps)
// eps is added to the uncorrected root. Rows that are not hit keep row, m and v bit for bit; there is no decay. t is one counter
// for the table, and stands still in a step that hits no row: torch.optim.SparseAdam.
#pragma once

#include "base/aten.h"

namespace hyperparallel::optim {

// Gradients of rows, each row once, ascending.
struct RowGradients {
  at::Tensor rows;    // int64 [n]
  at::Tensor values;  // [n, width]
};
// ids int64 [n], with repeats; values [n, width] -> the sum over the repeats, in their order.
RowGradients merge_rows(const at::Tensor& ids, const at::Tensor& values);

struct SparseAdamSettings {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
};

class SparseAdam {
 public:
  // `first` and `second`: the moments, zero at the start, of the table's shape and type; all three [rows, width], contiguous.
  SparseAdam(at::Tensor table, at::Tensor first, at::Tensor second, const SparseAdamSettings& settings);

  // One update with learning rate `lr`; gradients are multiplied by `coefficient` (clip.h) on the way. Throws InternalError for
  // rows outside the table.
  void step(const RowGradients& gradients, double lr, double coefficient);

  int64_t steps() const { return steps_; }
  void set_steps(int64_t steps) { steps_ = steps; }

 private:
  at::Tensor table_, first_, second_;
  SparseAdamSettings settings_;
  int64_t steps_ = 0;
};

}  // namespace hyperparallel::optim
