#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include "base/error.h"
#include "kernels/rows/op.h"
#include "kernels/types.h"

namespace hyperparallel::kernels {

// Threads split the columns, not the rows: every thread walks all ids in order, so no two threads write one element.
void scatter_add_rows(at::Tensor& target, const at::Tensor& ids, const at::Tensor& rows) {
  HP_CHECK(target.dim() == 2 && rows.dim() == 2 && ids.dim() == 1 && target.is_contiguous() && ids.scalar_type() == at::kLong,
           "scatter_add_rows takes a contiguous matrix, int64 ids and a matrix of rows");
  HP_CHECK(rows.size(0) == ids.size(0) && rows.size(1) == target.size(1),
           "scatter_add_rows: {} ids for rows [{}, {}] into [{}, {}]", ids.size(0), rows.size(0), rows.size(1), target.size(0),
           target.size(1));
  const int64_t count = ids.size(0), width = target.size(1), height = target.size(0);
  if (count == 0 || width == 0) return;
  const at::Tensor source = rows.to(target.scalar_type()).contiguous(), order = ids.contiguous();
  const int64_t* id = order.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < count; ++i) HP_CHECK(id[i] < height, "scatter_add_rows: id {} of a matrix of {} rows", id[i], height);
  const int64_t grain = std::max<int64_t>(16, 16384 / count);
  AT_DISPATCH_FLOATING_TYPES(target.scalar_type(), "scatter_add_rows", [&] {
    scalar_t* out = target.mutable_data_ptr<scalar_t>();
    const scalar_t* in = source.const_data_ptr<scalar_t>();
    at::parallel_for(0, width, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = 0; i < count; ++i) {
        if (id[i] < 0) continue;
        scalar_t* to = out + id[i] * width;
        const scalar_t* from = in + i * width;
        for (int64_t c = begin; c < end; ++c) to[c] += from[c];
      }
    });
  });
}

namespace {

struct GatherRows : torch::autograd::Function<GatherRows> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& source, const at::Tensor& ids) {
    context->save_for_backward({ids});
    context->saved_data["rows"] = source.size(0);
    context->saved_data["type"] = static_cast<int64_t>(source.scalar_type());
    if (source.size(0) == 0) return at::zeros({ids.size(0), source.size(1)}, source.options());
    at::Tensor rows = source.index_select(0, ids.clamp_min(0));
    return rows.masked_fill_(ids.lt(0).unsqueeze(1), 0);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const at::Tensor& dy = gradients[0];
    at::Tensor sum =
        at::zeros({context->saved_data["rows"].toInt(), dy.size(1)}, dy.options().dtype(math_type(dy.scalar_type())));
    scatter_add_rows(sum, context->get_saved_variables()[0], dy);
    return {sum.to(static_cast<at::ScalarType>(context->saved_data["type"].toInt())), at::Tensor()};
  }
};

}  // namespace

at::Tensor gather_rows(const at::Tensor& source, const at::Tensor& ids) {
  return GatherRows::apply(source, ids);
}

}  // namespace hyperparallel::kernels
