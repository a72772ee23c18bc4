#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <numeric>

#include "kernels/moe/mega.h"
#include "kernels/moe/op.h"
#include "kernels/types.h"

namespace hyperparallel::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

at::Tensor inverse_of(const at::Tensor& order) {
  at::Tensor inverse = at::empty_like(order);
  return inverse.scatter_(0, order, at::arange(order.size(0), order.options()));
}

at::Tensor sum_of_choices(const at::Tensor& rows, const at::Tensor& order, int64_t k) {
  return to_math(rows).index_select(0, inverse_of(order)).view({-1, k, rows.size(1)}).sum(1);
}

struct DispatchRows : torch::autograd::Function<DispatchRows> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& order, int64_t k) {
    context->save_for_backward({order});
    context->saved_data["k"] = k;
    return x.index_select(0, at::floor_divide(order, k));
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const at::Tensor dx = sum_of_choices(gradients[0], context->get_saved_variables()[0], context->saved_data["k"].toInt());
    return {dx.to(gradients[0].scalar_type()), at::Tensor(), at::Tensor()};
  }
};

struct CombineRows : torch::autograd::Function<CombineRows> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& rows, const at::Tensor& order, int64_t k) {
    context->save_for_backward({order});
    context->saved_data["k"] = k;
    context->saved_data["type"] = static_cast<int64_t>(rows.scalar_type());
    return sum_of_choices(rows, order, k);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto type = static_cast<at::ScalarType>(context->saved_data["type"].toInt());
    const at::Tensor token = at::floor_divide(context->get_saved_variables()[0], context->saved_data["k"].toInt());
    return {gradients[0].to(type).index_select(0, token), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor router_scores(const at::Tensor& logits, double temperature) {
  return at::softplus(temperature == 1.0 ? logits : logits / temperature).sqrt();
}

at::Tensor choose_experts(const at::Tensor& scores, const at::Tensor& bias, const at::Tensor& bias_vl, const at::Tensor& image,
                          int64_t k) {
  const at::Tensor ranked = (scores + at::where(image.unsqueeze(1), bias_vl.unsqueeze(0), bias.unsqueeze(0))).contiguous();
  const int64_t experts = scores.size(1);
  at::Tensor chosen = at::empty({scores.size(0), k}, at::kLong);
  int64_t* out = chosen.mutable_data_ptr<int64_t>();
  AT_DISPATCH_FLOATING_TYPES(ranked.scalar_type(), "choose_experts", [&] {
    const scalar_t* data = ranked.const_data_ptr<scalar_t>();
    at::parallel_for(0, scores.size(0), 64, [&](int64_t begin, int64_t end) {
      std::vector<int64_t> ids(experts);
      for (int64_t t = begin; t < end; ++t) {
        const scalar_t* score = data + t * experts;
        std::iota(ids.begin(), ids.end(), 0);
        std::partial_sort(ids.begin(), ids.begin() + k, ids.end(),
                          [&](int64_t a, int64_t b) { return score[a] != score[b] ? score[a] > score[b] : a < b; });
        std::sort(ids.begin(), ids.begin() + k);
        std::copy_n(ids.begin(), k, out + t * k);
      }
    });
  });
  return chosen;
}

at::Tensor expert_weights(const at::Tensor& scores, const at::Tensor& expert_ids, bool normalise, double scale) {
  at::Tensor weights = scores.gather(1, expert_ids);
  if (normalise && expert_ids.size(1) > 1) weights = weights / (weights.sum(1, /*keepdim=*/true) + 1e-20);
  return weights * scale;
}

RowOrder sort_rows(const at::Tensor& expert_ids, int64_t experts) {
  const at::Tensor ids = expert_ids.contiguous();
  const int64_t rows = ids.numel();
  RowOrder result{at::empty({rows}, at::kLong), at::zeros({experts + 1}, at::kLong)};
  const int64_t* id = ids.const_data_ptr<int64_t>();
  int64_t* offset = result.offsets.mutable_data_ptr<int64_t>();
  int64_t* order = result.order.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < rows; ++i) ++offset[id[i] + 1];
  std::partial_sum(offset, offset + experts + 1, offset);
  std::vector<int64_t> next(offset, offset + experts);
  for (int64_t i = 0; i < rows; ++i) order[next[id[i]]++] = i;
  return result;
}

at::Tensor clamped_swiglu(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& weight, double limit) {
  at::Tensor g = to_math(gate), u = to_math(up);
  if (limit > 0) {
    g = g.clamp_max(limit);
    u = u.clamp(-limit, limit);
  }
  at::Tensor y = at::silu(g) * u;
  if (weight.defined()) y = y * weight.unsqueeze(1);
  return y.to(gate.scalar_type());
}

at::Tensor dispatch_rows(const at::Tensor& x, const at::Tensor& order, int64_t k) {
  return DispatchRows::apply(x, order, k);
}
at::Tensor combine_rows(const at::Tensor& rows, const at::Tensor& order, int64_t k) {
  return CombineRows::apply(rows, order, k);
}

std::vector<Candidate> expert_candidates(at::ScalarType type, int64_t d, int64_t width) {
  return {{Implementation::kMega, moe::refusal(type, d, width)}, {Implementation::kReference, ""}};
}

}  // namespace hyperparallel::kernels
