#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include "base/error.h"
#include "kernels/rope/op.h"
#include "kernels/rope/rows.h"
#include "kernels/types.h"
#include "kernels/with_types.h"

namespace hyperparallel::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor rotated(const at::Tensor& given, const at::Tensor& cos, const at::Tensor& sin, bool inverse) {
  const at::Tensor x = given.detach().contiguous();
  const int64_t tokens = x.size(0), channels = x.size(-1), pairs = cos.size(1);
  at::Tensor out = at::empty(x.sizes(), x.options());
  if (x.numel() == 0) return out;
  const int64_t rows = x.numel() / (tokens * channels), width = rows * channels;
  with_types(x.scalar_type(), [&](auto s, auto t) {
    using S = decltype(s);
    using T = decltype(t);
    at::parallel_for(0, tokens, std::max<int64_t>(1, 16384 / width), [&](int64_t begin, int64_t end) {
      rope::rotate<S, T>(end - begin, rows, channels, pairs, data<S>(x) + begin * width, data<T>(cos) + begin * pairs,
                         data<T>(sin) + begin * pairs, inverse, writable<S>(out) + begin * width);
    });
  });
  return out;
}

struct Rope : torch::autograd::Function<Rope> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin,
                            bool inverse) {
    context->save_for_backward({cos, sin});
    context->saved_data["inverse"] = inverse;
    return rotated(x, cos, sin, inverse);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list table = context->get_saved_variables();
    const at::Tensor none;
    return {rotated(gradients[0], table[0], table[1], !context->saved_data["inverse"].toBool()), none, none, none};
  }
};

}  // namespace

at::Tensor apply_rope(const at::Tensor& x, const RopeTable& table, bool inverse) {
  HP_CHECK(2 * table.cos.size(1) <= x.size(-1) && x.size(0) == table.cos.size(0), "rope of {} channels on [{}]",
           2 * table.cos.size(1), fmt::join(x.sizes().vec(), ", "));
  HP_CHECK(table.cos.scalar_type() == math_type(x.scalar_type()), "a rope table of {} for {}",
           at::toString(table.cos.scalar_type()), at::toString(x.scalar_type()));
  return Rope::apply(x, table.cos.contiguous(), table.sin.contiguous(), inverse);
}

}  // namespace hyperparallel::kernels
