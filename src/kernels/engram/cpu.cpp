#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "kernels/engram/op.h"
#include "kernels/engram/rows.h"
#include "kernels/types.h"
#include "kernels/with_types.h"

namespace hyperparallel::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kNumbers = 4;  // of engram::Sums

// Sums of a token and stream, [tokens, n, kNumbers] in the math type.
template <class T>
engram::Sums<T>* sums_in(const at::Tensor& kept) {
  static_assert(sizeof(engram::Sums<T>) == kNumbers * sizeof(T));
  return static_cast<engram::Sums<T>*>(kept.mutable_data_ptr());
}

at::Tensor gain_of(const at::Tensor& q_weight, const at::Tensor& k_weight, at::ScalarType math) {
  return (q_weight.detach().to(math) * k_weight.detach().to(math)).contiguous();
}

struct EngramWrite : torch::autograd::Function<EngramWrite> {
  static variable_list forward(AutogradContext* context, const at::Tensor& given_streams, const at::Tensor& given_kv,
                               const at::Tensor& q_weight, const at::Tensor& k_weight, const at::Tensor& given_closed,
                               double eps) {
    const at::Tensor streams = given_streams.detach().contiguous(), kv = given_kv.detach().to(streams.scalar_type()).contiguous(),
                     closed = given_closed.contiguous();
    const int64_t tokens = streams.size(0), n = streams.size(1), d = streams.size(2);
    const at::ScalarType math = math_type(streams.scalar_type());
    const at::Tensor gain = gain_of(q_weight, k_weight, math), out = at::empty_like(streams),
                     sums = at::empty({tokens, n, kNumbers}, streams.options().dtype(math));
    with_types(streams.scalar_type(), [&](auto s, auto t) {
      using S = decltype(s);
      using T = decltype(t);
      at::parallel_for(0, tokens, 16, [&](int64_t begin, int64_t end) {
        engram::forward<S, T>(end - begin, n, d, eps, data<S>(streams) + begin * n * d, data<S>(kv) + begin * (n + 1) * d,
                              data<T>(gain), closed.const_data_ptr<bool>() + begin, writable<S>(out) + begin * n * d,
                              sums_in<T>(sums) + begin * n);
      });
    });
    context->save_for_backward({streams, kv, q_weight, k_weight, closed, sums});
    const at::Tensor gate = sums.select(2, kNumbers - 1);
    context->mark_non_differentiable({gate});
    context->saved_data["kv_type"] = static_cast<int64_t>(given_kv.scalar_type());
    return {gate, out};
  }

  // The gain's gradient is a sum over tokens: parts with sums of their own, added up in order, as many as sizes alone say.
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &streams = saved[0], &kv = saved[1], &q_weight = saved[2], &k_weight = saved[3], &closed = saved[4],
                     &sums = saved[5];
    const int64_t tokens = streams.size(0), n = streams.size(1), d = streams.size(2),
                  parts = std::clamp<int64_t>(tokens / 64, 1, 16);
    const at::Tensor dout = gradients[1].to(streams.scalar_type()).contiguous(),
                     gain = gain_of(q_weight, k_weight, sums.scalar_type()), dstreams = at::empty_like(streams),
                     dkv = at::empty_like(kv), dgains = at::zeros({parts, n, d}, sums.options());
    with_types(streams.scalar_type(), [&](auto s, auto t) {
      using S = decltype(s);
      using T = decltype(t);
      at::parallel_for(0, parts, 1, [&](int64_t first, int64_t last) {
        for (int64_t part = first; part < last; ++part) {
          const int64_t begin = tokens * part / parts, end = tokens * (part + 1) / parts;
          engram::backward<S, T>(end - begin, n, d, data<S>(streams) + begin * n * d, data<S>(kv) + begin * (n + 1) * d,
                                 data<T>(gain), closed.const_data_ptr<bool>() + begin, sums_in<T>(sums) + begin * n,
                                 data<S>(dout) + begin * n * d, writable<S>(dstreams) + begin * n * d,
                                 writable<S>(dkv) + begin * (n + 1) * d, writable<T>(dgains) + part * n * d);
        }
      });
    });
    at::Tensor dgain = dgains.select(0, 0);  // [n, d]
    for (int64_t part = 1; part < parts; ++part) dgain.add_(dgains.select(0, part));
    return {dstreams,
            dkv.to(static_cast<at::ScalarType>(context->saved_data["kv_type"].toInt())),
            (dgain * k_weight).to(q_weight.scalar_type()),
            (dgain * q_weight).to(k_weight.scalar_type()),
            at::Tensor(),
            at::Tensor()};
  }
};

}  // namespace

std::pair<at::Tensor, at::Tensor> engram_write(const at::Tensor& streams, const at::Tensor& kv, const at::Tensor& q_weight,
                                               const at::Tensor& k_weight, const at::Tensor& closed, double eps,
                                               Implementation how) {
  if (how == Implementation::kReference) return engram_write_reference(streams, kv, q_weight, k_weight, closed, eps);
  const variable_list made = EngramWrite::apply(streams, kv, q_weight, k_weight, closed, eps);
  return {made[0], made[1]};
}

std::vector<Candidate> engram_candidates() {
  return {{Implementation::kFused, ""}, {Implementation::kReference, ""}};
}

}  // namespace hyperparallel::kernels
