// The router of op.h: composed, and in one pass over the logits by blocks of tokens on the multicore runtime (gate_rows.h).
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "base/error.h"
#include "kernels/moe/gate_rows.h"
#include "kernels/moe/op.h"
#include "kernels/types.h"
#include "runtime/run.h"

namespace hyperparallel::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kTaskTokens = 256;  // of a task

moe::GateShape shape_of(const at::Tensor& logits, const RouterRule& rule) {
  return {logits.size(1), rule.k, rule.temperature, rule.scale, rule.normalise};
}

struct Gate : torch::autograd::Function<Gate> {
  static variable_list forward(AutogradContext* context, const at::Tensor& given, const RouterChoice& choice,
                               const RouterRule& rule) {
    const at::Tensor logits = given.detach().contiguous();
    const int64_t tokens = logits.size(0), experts = logits.size(1), k = rule.k;
    const bool is_given = choice.ids.defined();
    const at::Tensor scores = at::empty_like(logits), weights = at::empty({tokens, k}, logits.options());
    const at::Tensor ids = is_given ? choice.ids.contiguous() : at::empty({tokens, k}, at::kLong);
    AT_DISPATCH_FLOATING_TYPES(logits.scalar_type(), "gate", [&] {
      const auto data = [](const at::Tensor& x) { return x.defined() ? x.const_data_ptr<scalar_t>() : nullptr; };
      at::Tensor bias, bias_vl, image;
      if (!is_given) {
        bias = choice.bias.detach().to(logits.scalar_type()).contiguous();
        bias_vl = choice.bias_vl.detach().to(logits.scalar_type()).contiguous();
        image = choice.image.contiguous();
      }
      runtime::run_blocks("gate", tokens, kTaskTokens, [&](int64_t first, int64_t end, int) {
        moe::gate_forward<scalar_t>(shape_of(logits, rule), end - first, data(logits) + first * experts, data(bias),
                                    data(bias_vl), is_given ? nullptr : image.const_data_ptr<bool>() + first, is_given,
                                    scores.mutable_data_ptr<scalar_t>() + first * experts,
                                    const_cast<int64_t*>(ids.const_data_ptr<int64_t>()) + first * k,
                                    weights.mutable_data_ptr<scalar_t>() + first * k);
      });
    });
    context->save_for_backward({logits, scores, ids});
    context->saved_data["rule"] = std::vector<double>{rule.temperature, rule.scale};
    context->saved_data["normalise"] = rule.normalise;
    context->mark_non_differentiable({ids});
    return {scores, ids, weights};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &logits = saved[0], &scores = saved[1], &ids = saved[2];
    const std::vector<double> numbers = context->saved_data["rule"].toDoubleVector();
    const RouterRule rule{ids.size(1), numbers[0], context->saved_data["normalise"].toBool(), numbers[1]};
    const at::Tensor dscores = gradients[0].contiguous(), dweights = gradients[2].contiguous();
    const at::Tensor dlogits = at::empty_like(logits);
    AT_DISPATCH_FLOATING_TYPES(logits.scalar_type(), "gate_backward", [&] {
      const int64_t experts = logits.size(1), k = rule.k;
      const auto rows = [](const at::Tensor& x, int64_t at) { return x.const_data_ptr<scalar_t>() + at; };
      runtime::run_blocks("gate backward", logits.size(0), kTaskTokens, [&](int64_t first, int64_t end, int) {
        moe::gate_backward<scalar_t>(shape_of(logits, rule), end - first, rows(logits, first * experts),
                                     rows(scores, first * experts), ids.const_data_ptr<int64_t>() + first * k,
                                     rows(dscores, first * experts), rows(dweights, first * k),
                                     dlogits.mutable_data_ptr<scalar_t>() + first * experts);
      });
    });
    return {dlogits, at::Tensor(), at::Tensor()};
  }
};

}  // namespace

Routed route(const at::Tensor& logits, const RouterChoice& choice, const RouterRule& rule, Implementation how) {
  if (how == Implementation::kMega) {
    const variable_list out = Gate::apply(logits, choice, rule);
    return {out[0], out[1], out[2]};
  }
  Routed routed;
  routed.scores = router_scores(logits, rule.temperature);
  routed.ids = choice.ids;
  if (!routed.ids.defined()) routed.ids = choose_experts(routed.scores, choice.bias, choice.bias_vl, choice.image, rule.k);
  routed.weights = expert_weights(routed.scores, routed.ids, rule.normalise, rule.scale);
  return routed;
}

std::vector<Candidate> gate_candidates(bool on_cpu) {
  return {{Implementation::kMega, on_cpu ? "" : "it is made for CPUs"}, {Implementation::kReference, ""}};
}

}  // namespace hyperparallel::kernels
