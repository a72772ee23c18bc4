#include "engine/draft_scores.h"

#include <ATen/core/grad_mode.h>

#include "engine/weight_holder.h"
#include "kernels/types.h"

namespace hyperparallel::engine {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// What each rank of the part's group has, behind one another: [ranks, ...].
at::Tensor of_all_parts(const VocabularyPart& part, const at::Tensor& mine) {
  if (part.group == nullptr) return mine.unsqueeze(0);
  return part.group->all_gather(mine.unsqueeze(0), std::vector<int64_t>(part.group->size(), 1), "draft_scores").wait();
}

// Of a chunk of rows, over all words. All [rows].
struct Sums {
  at::Tensor log_sum, model_log_sum;  // log(sum of exp) of both logits
  at::Tensor target;                  // the target's logit
  at::Tensor hit;
};
// `own`: the target among this rank's words, `here` whether it is one of them.
Sums sums_of(const VocabularyPart& part, const at::Tensor& logits, const at::Tensor& model_logits, const at::Tensor& own,
             const at::Tensor& here) {
  const at::Tensor target = logits.gather(1, own.unsqueeze(1)).squeeze(1).masked_fill(here.logical_not(), 0);
  const auto [most, likeliest] = logits.max(1);  // the first of equal ones
  const at::Tensor all = of_all_parts(part, at::stack({logits.logsumexp(1), model_logits.logsumexp(1), target, most,
                                                       likeliest.eq(own).logical_and(here).to(logits.scalar_type())}));
  const at::Tensor part_of_most = std::get<1>(all.select(1, 3).max(0));  // [rows]
  return {all.select(1, 0).logsumexp(0), all.select(1, 1).logsumexp(0), all.select(1, 2).sum(0),
          all.select(1, 4).gather(0, part_of_most.unsqueeze(0)).squeeze(0)};
}

struct DraftScoring : Function<DraftScoring> {
  static variable_list forward(AutogradContext* context, const at::Tensor& hidden, const at::Tensor& states,
                               const at::Tensor& /*anchor*/, const at::Tensor& model_hidden, const at::Tensor& targets,
                               const at::Tensor& weights, const Weight& head, const Weight& state_head,
                               const DraftLossWeights& loss, int64_t chunk, const VocabularyPart& part, bool derive) {
    const at::ScalarType type = hidden.scalar_type(), math = kernels::math_type(type);
    const at::Tensor scored = targets.ge(0).nonzero().flatten();
    const auto chosen = [&](const at::Tensor& x) { return x.detach().index_select(0, scored); };
    const at::Tensor rows = chosen(hidden), state_rows = chosen(states), model_rows = chosen(model_hidden);
    const at::Tensor row_weights = chosen(weights), w = head.value().to(type), v = state_head.value().to(type);
    const at::Tensor ids = chosen(targets) - part.first, here = ids.ge(0).logical_and(ids.lt(w.size(0))),
                     own = ids.clamp(0, w.size(0) - 1);
    const at::Tensor found = at::empty({3, scored.size(0)}, hidden.options().dtype(math));  // cross-entropy, distance, hit
    at::Tensor dx, ds, dv;
    if (derive) dx = at::empty_like(rows), ds = at::empty_like(state_rows);
    if (derive && state_head.trainable()) dv = at::zeros(v.sizes(), v.options().dtype(state_head.store->master_type()));
    for (int64_t first = 0; first < scored.size(0); first += chunk) {
      const int64_t count = std::min(chunk, scored.size(0) - first);
      const auto cut = [&](const at::Tensor& x) { return x.narrow(0, first, count); };
      const at::Tensor logits = (at::linear(cut(rows), w) + at::linear(cut(state_rows), v)).to(math);  // [chunk, words]
      at::Tensor model = at::linear(cut(model_rows), w).to(math);
      const Sums sums = sums_of(part, logits, model, cut(own), cut(here));
      const at::Tensor p = (logits - sums.log_sum.unsqueeze(1)).exp_();
      model.sub_(sums.model_log_sum.unsqueeze(1)).exp_();
      const at::Tensor difference = p - model, sign = difference.sign();
      // [2, chunk]: the distance, and the mean sign, sum of p * sign.
      const at::Tensor over_words = of_all_parts(part, at::stack({difference.abs().sum(1), (p * sign).sum(1)})).sum(0);
      found[0].narrow(0, first, count).copy_(sums.log_sum - sums.target);
      found[1].narrow(0, first, count).copy_(over_words[0]);
      found[2].narrow(0, first, count).copy_(sums.hit);
      if (!derive) continue;
      at::Tensor d = p * (sign - over_words[1].unsqueeze(1)).mul_(loss.distance).add_(loss.cross_entropy);
      d.scatter_add_(1, cut(own).unsqueeze(1), cut(here).to(math).mul_(-loss.cross_entropy).unsqueeze(1));
      d = d.mul_(cut(row_weights).unsqueeze(1)).to(type);
      cut(dx).copy_(at::mm(d, w));
      cut(ds).copy_(at::mm(d, v));
      if (dv.defined()) dv.add_(at::mm(d.t(), cut(state_rows)));
    }
    if (derive) context->save_for_backward({scored, dx, ds, dv});
    save_weight(context, state_head);
    context->saved_data["rows"] = hidden.size(0);
    const at::Tensor all = at::zeros({3, hidden.size(0)}, found.options()).index_copy_(1, scored, found);
    const at::Tensor total = (row_weights * (loss.cross_entropy * found[0] + loss.distance * found[1])).sum();
    context->mark_non_differentiable({all});
    return {total, all};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const double seed = gradients[0].item<double>();
    const auto spread = [&](const at::Tensor& rows) {
      return at::zeros({context->saved_data["rows"].toInt(), rows.size(1)}, rows.options()).index_copy_(0, saved[0], rows * seed);
    };
    const WeightHolder& state_head = saved_weight(context);
    if (saved[3].defined()) state_head.store->move_to_slot(state_head.id, saved[3].detach().mul_(seed));
    variable_list result(12);
    result[0] = spread(saved[1]);
    result[1] = spread(saved[2]);
    return result;
  }
};

}  // namespace

DraftScores draft_scores(const at::Tensor& hidden, const at::Tensor& states, const at::Tensor& model_hidden,
                         const at::Tensor& targets, const at::Tensor& weights, const Weight& head, const Weight& state_head,
                         const DraftLossWeights& loss, int64_t chunk, const VocabularyPart& part) {
  const at::Tensor anchor = anchor_of(state_head);
  const bool derive = at::GradMode::is_enabled() && (hidden.requires_grad() || states.requires_grad() || anchor.requires_grad());
  const variable_list found =
      DraftScoring::apply(hidden, states, anchor, model_hidden, targets, weights, head, state_head, loss, chunk, part, derive);
  return {found[0], found[1][0], found[1][1], found[1][2]};
}

GreedyDraft greedy_draft(const at::Tensor& hidden, const at::Tensor& normed, const at::Tensor& first, const at::Tensor& head,
                         const at::Tensor& state_of, const at::Tensor& state_head, const at::Tensor& projection) {
  const at::NoGradGuard no_grad;
  const at::Tensor base = kernels::to_math(at::linear(normed, head));  // [drafts, slots, words]
  std::vector<at::Tensor> ids{first}, logits, confidence;
  for (int64_t slot = 0; slot < hidden.size(1); ++slot) {
    const at::Tensor states = state_of.index_select(0, ids.back());  // [drafts, rank]
    logits.push_back(base.select(1, slot) + kernels::to_math(at::linear(states, state_head)));
    confidence.push_back(at::linear(kernels::to_math(at::cat({hidden.select(1, slot), states}, 1)), projection).squeeze(1));
    ids.push_back(logits.back().argmax(1));
  }
  return {at::stack(ids, 1), at::stack(logits, 1), at::stack(confidence, 1)};
}

}  // namespace hyperparallel::engine
