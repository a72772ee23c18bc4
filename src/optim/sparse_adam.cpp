#include "optim/sparse_adam.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/error.h"
#include "kernels/rows/op.h"
#include "optim/vector_kernels.h"

namespace hyperparallel::optim {

RowGradients merge_rows(const at::Tensor& ids, const at::Tensor& values) {
  HP_CHECK(ids.dim() == 1 && values.dim() == 2 && ids.size(0) == values.size(0), "{} rows with ids of shape [{}]", values.size(0),
           fmt::join(ids.sizes(), ", "));
  const auto [rows, places] = at::_unique(ids, /*sorted=*/true, /*return_inverse=*/true);
  at::Tensor sums = at::zeros({rows.size(0), values.size(1)}, values.options());
  kernels::scatter_add_rows(sums, places, values);
  return {rows, sums};
}

SparseAdam::SparseAdam(at::Tensor table, at::Tensor first, at::Tensor second, const SparseAdamSettings& settings)
    : table_(std::move(table)), first_(std::move(first)), second_(std::move(second)), settings_(settings) {
  for (const at::Tensor* moment : {&first_, &second_}) {
    HP_CHECK(moment->sizes() == table_.sizes() && moment->scalar_type() == table_.scalar_type(),
             "a moment of another shape or type");
  }
  HP_CHECK(table_.dim() == 2 && table_.is_contiguous() && first_.is_contiguous() && second_.is_contiguous(),
           "tables are contiguous matrices");
}

void SparseAdam::step(const RowGradients& gradients, double lr, double coefficient) {
  const int64_t hit = gradients.rows.size(0), width = table_.size(1), all = table_.size(0);
  if (hit == 0) return;
  const at::Tensor rows = gradients.rows.contiguous(), values = gradients.values.to(table_.scalar_type()).contiguous();
  const int64_t* row = rows.const_data_ptr<int64_t>();
  HP_CHECK(std::all_of(row, row + hit, [&](int64_t r) { return r >= 0 && r < all; }), "rows outside a table of {}", all);
  ++steps_;
  const auto t = static_cast<double>(steps_);
  AdamWFactors factors{coefficient, settings_.beta1, settings_.beta2, settings_.eps};
  factors.step_size = lr * std::sqrt(1 - std::pow(settings_.beta2, t)) / (1 - std::pow(settings_.beta1, t));
  const auto update = [&]<class T>(T*) {
    const T* gradient = values.const_data_ptr<T>();
    T *table = table_.data_ptr<T>(), *first = first_.data_ptr<T>(), *second = second_.data_ptr<T>();
    at::parallel_for(0, hit, std::max<int64_t>(1, 4096 / width), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t at = row[i] * width;
        adamw_update(factors, width, gradient + i * width, table + at, first + at, second + at);
      }
    });
  };
  table_.scalar_type() == at::kDouble ? update(static_cast<double*>(nullptr)) : update(static_cast<float*>(nullptr));
}

}  // namespace hyperparallel::optim
