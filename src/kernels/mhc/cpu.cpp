#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include "base/error.h"
#include "kernels/mhc/coefficients.h"
#include "kernels/mhc/op.h"
#include "kernels/types.h"

namespace hyperparallel::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Tokens that one call of the loops takes; sums over tokens add up by these, whatever the number of threads.
constexpr int64_t kTokens = 256;

template <class Body>
void over_tokens(int64_t tokens, const Body& body) {  // body(part, first, count)
  at::parallel_for(0, (tokens + kTokens - 1) / kTokens, 1, [&](int64_t begin, int64_t end) {
    for (int64_t part = begin; part < end; ++part) body(part, part * kTokens, std::min(kTokens, tokens - part * kTokens));
  });
}

struct MixCoefficientsFunction : torch::autograd::Function<MixCoefficientsFunction> {
  static variable_list forward(AutogradContext* context, const at::Tensor& streams, const at::Tensor& fn, const at::Tensor& scale,
                               const at::Tensor& base, double rms_eps, double hc_eps, int64_t iterations) {
    const int64_t tokens = streams.size(0), n = streams.size(1), width = n * streams.size(2);
    const at::Tensor x = to_math(streams).reshape({tokens, width}).contiguous();
    const at::Tensor projected = at::linear(x, fn), r = at::empty({tokens}, x.options());
    const at::Tensor scales = scale.contiguous(), bases = base.contiguous();
    variable_list out{at::empty({tokens, n}, x.options()), at::empty({tokens, n}, x.options()),
                      at::empty({tokens, n, n}, x.options())};
    const mhc::MixShape shape{n, iterations, hc_eps};
    AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "mix_coefficients", [&] {
      const auto* rows = x.const_data_ptr<scalar_t>();
      auto* inverse = r.mutable_data_ptr<scalar_t>();
      over_tokens(tokens, [&](int64_t, int64_t first, int64_t count) {
        mhc::inverse_rms(count, width, rms_eps, rows + first * width, inverse + first);
        const mhc::MixValues<scalar_t> in{projected.const_data_ptr<scalar_t>() + first * shape.outputs(), inverse + first,
                                          scales.const_data_ptr<scalar_t>(), bases.const_data_ptr<scalar_t>()};
        mhc::mix_forward(shape, count, in, out[0].mutable_data_ptr<scalar_t>() + first * n,
                         out[1].mutable_data_ptr<scalar_t>() + first * n, out[2].mutable_data_ptr<scalar_t>() + first * n * n);
      });
    });
    context->save_for_backward({streams, fn, scales, bases, projected, r});
    context->saved_data["iterations"] = iterations;
    context->saved_data["hc_eps"] = hc_eps;
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &streams = saved[0], &fn = saved[1], &scale = saved[2], &base = saved[3], &projected = saved[4],
                     &r = saved[5];
    const int64_t tokens = streams.size(0), n = streams.size(1), width = n * streams.size(2);
    const mhc::MixShape shape{n, context->saved_data["iterations"].toInt(), context->saved_data["hc_eps"].toDouble()};
    const int64_t outputs = shape.outputs();
    const at::Tensor x = to_math(streams).reshape({tokens, width}).contiguous();
    for (at::Tensor& gradient : gradients) gradient = gradient.contiguous();
    const at::Tensor dprojected = at::empty_like(projected), dr = at::empty_like(r);
    at::Tensor sums = at::zeros({(tokens + kTokens - 1) / kTokens, 3 + outputs}, x.options().dtype(at::kDouble));
    at::Tensor dx;  // [tokens, width]
    AT_DISPATCH_FLOATING_TYPES(x.scalar_type(), "mix_coefficients_backward", [&] {
      over_tokens(tokens, [&](int64_t part, int64_t first, int64_t count) {
        const mhc::MixValues<scalar_t> in{projected.const_data_ptr<scalar_t>() + first * outputs,
                                          r.const_data_ptr<scalar_t>() + first, scale.const_data_ptr<scalar_t>(),
                                          base.const_data_ptr<scalar_t>()};
        const auto gradient = [&](int which, int64_t size) { return gradients[which].const_data_ptr<scalar_t>() + first * size; };
        mhc::mix_backward(shape, count, in, gradient(0, n), gradient(1, n), gradient(2, n * n),
                          dprojected.mutable_data_ptr<scalar_t>() + first * outputs, dr.mutable_data_ptr<scalar_t>() + first,
                          sums.mutable_data_ptr<double>() + part * (3 + outputs));
      });
      dx = at::mm(dprojected, fn);
      over_tokens(tokens, [&](int64_t, int64_t first, int64_t count) {
        mhc::add_inverse_rms_gradient(count, width, x.const_data_ptr<scalar_t>() + first * width,
                                      r.const_data_ptr<scalar_t>() + first, dr.const_data_ptr<scalar_t>() + first,
                                      dx.mutable_data_ptr<scalar_t>() + first * width);
      });
    });
    const at::Tensor sum = sums.sum(0).to(x.scalar_type());
    return {dx.view_as(streams).to(streams.scalar_type()),
            at::mm(dprojected.t(), x),
            sum.narrow(0, 0, 3),
            sum.narrow(0, 3, outputs),
            at::Tensor(),
            at::Tensor(),
            at::Tensor()};
  }
};

}  // namespace

MixCoefficients mix_coefficients(const at::Tensor& streams, const at::Tensor& fn, const at::Tensor& scale, const at::Tensor& base,
                                 double rms_eps, double hc_eps, int64_t iterations) {
  if (!streams.is_cpu()) return reference::mix_coefficients(streams, fn, scale, base, rms_eps, hc_eps, iterations);
  HP_CHECK(fn.scalar_type() == math_type(streams.scalar_type()), "mix_coefficients of {} streams by a {} matrix",
           at::toString(streams.scalar_type()), at::toString(fn.scalar_type()));
  const variable_list out = MixCoefficientsFunction::apply(streams, fn, scale, base, rms_eps, hc_eps, iterations);
  return {out[0], out[1], out[2]};
}

}  // namespace hyperparallel::kernels
