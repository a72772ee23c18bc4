#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include "base/error.h"
#include "kernels/norm/op.h"
#include "kernels/norm/rows.h"
#include "kernels/types.h"
#include "kernels/with_types.h"

namespace hyperparallel::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

int64_t rows_of(const at::Tensor& x) {
  return x.numel() == 0 ? 0 : x.numel() / x.size(-1);
}

struct RmsNorm : torch::autograd::Function<RmsNorm> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& given, const at::Tensor& given_gain, double eps) {
    const at::Tensor x = given.detach().contiguous(), gain = given_gain.detach().to(x.scalar_type()).contiguous();
    const int64_t d = x.size(-1), rows = rows_of(x);
    at::Tensor y = at::empty(x.sizes(), x.options()), r = at::empty({rows}, x.options().dtype(math_type(x.scalar_type())));
    with_types(x.scalar_type(), [&](auto s, auto t) {
      using S = decltype(s);
      using T = decltype(t);
      at::parallel_for(0, rows, std::max<int64_t>(1, 16384 / std::max<int64_t>(1, d)), [&](int64_t begin, int64_t end) {
        norm::forward<S, T>(end - begin, d, eps, data<S>(x) + begin * d, data<S>(gain), writable<S>(y) + begin * d,
                            writable<T>(r) + begin);
      });
    });
    context->save_for_backward({x, gain, r});
    context->saved_data["type"] = static_cast<int64_t>(given_gain.scalar_type());
    return y;
  }

  // The gain's gradient is a sum over rows: parts with sums of their own, which are added up in order. How many depends on sizes
  // alone, so bits do not depend on the number of threads.
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &gain = saved[1], &r = saved[2], dy = gradients[0].contiguous();
    const int64_t d = x.size(-1), rows = rows_of(x), parts = std::clamp<int64_t>(rows / 64, 1, 32);
    at::Tensor dx = at::empty(x.sizes(), x.options()), sums = at::zeros({parts, d}, r.options());
    with_types(x.scalar_type(), [&](auto s, auto t) {
      using S = decltype(s);
      using T = decltype(t);
      at::parallel_for(0, parts, 1, [&](int64_t first, int64_t last) {
        for (int64_t part = first; part < last; ++part) {
          const int64_t begin = rows * part / parts, end = rows * (part + 1) / parts;
          norm::backward<S, T>(end - begin, d, data<S>(x) + begin * d, data<S>(gain), data<T>(r) + begin, data<S>(dy) + begin * d,
                               writable<S>(dx) + begin * d, writable<T>(sums) + part * d);
        }
      });
    });
    at::Tensor dgain = sums.select(0, 0);
    for (int64_t part = 1; part < parts; ++part) dgain.add_(sums.select(0, part));
    return {dx, dgain.to(static_cast<at::ScalarType>(context->saved_data["type"].toInt())), at::Tensor()};
  }
};

}  // namespace

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& gain, double eps) {
  HP_CHECK(gain.dim() == 1 && gain.size(0) == x.size(-1), "a gain of [{}] for rows of {}", fmt::join(gain.sizes().vec(), ", "),
           x.size(-1));
  return RmsNorm::apply(x, gain, eps);
}

}  // namespace hyperparallel::kernels
