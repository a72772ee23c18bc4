#include "engine/experts.h"

#include <array>

#include "engine/layout.h"
#include "engine/weight_holder.h"
#include "kernels/moe/mega.h"

namespace hyperparallel::engine {
namespace {

namespace moe = kernels::moe;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

struct ExpertsHolder : torch::CustomClassHolder {
  std::optional<ExpertWeights> routed, shared;
  std::optional<ExpertRanks> ranks;
};

moe::Peers peers_of(const ExpertsHolder& experts, const at::Tensor& offsets) {
  if (!experts.ranks) return {};
  const ExpertRanks& ranks = *experts.ranks;
  std::vector<int64_t> firsts{0};
  for (int64_t part : even_parts(offsets.size(0) - 1, ranks.group->size())) firsts.push_back(firsts.back() + part);
  return {ranks.group, firsts, ranks.counts, ranks.label, ranks.waited};
}

at::Tensor three_dimensional(const at::Tensor& w) {
  return w.dim() == 2 ? w.unsqueeze(0) : w;
}

moe::Experts values(const std::optional<ExpertWeights>& weights, at::ScalarType type) {
  if (!weights) return {};
  const auto value = [&](const Weight& weight) { return three_dimensional(weight.value().to(type)); };
  return {value(weights->w1), value(weights->w3), value(weights->w2)};
}

bool learns(const ExpertWeights& weights) {
  return weights.w1.trainable() || weights.w3.trainable() || weights.w2.trainable();
}

// Where the gradients of weights are summed. The slots of those that stand still are not touched, so sums of their own take
// theirs.
moe::ExpertGradients slots(const std::optional<ExpertWeights>& weights) {
  if (!weights || !learns(*weights)) return {};
  std::vector<at::Tensor> sums, unset;
  for (const Weight* weight : {&weights->w1, &weights->w3, &weights->w2}) {
    ParameterStore::Slot slot;
    if (weight->trainable()) {
      slot = weight->store->open_slot(weight->id);
    } else {
      slot = {at::empty(weight->value().sizes(), weight->value().options().dtype(weight->store->master_type())), true};
    }
    if (slot.is_unset) unset.push_back(slot.tensor);
    sums.push_back(three_dimensional(slot.tensor));
  }
  const bool all_unset = unset.size() == sums.size();
  if (!all_unset)
    for (at::Tensor& slot : unset) slot.zero_();
  return {sums[0], sums[1], sums[2], all_unset};
}

struct ExpertLayer : torch::autograd::Function<ExpertLayer> {
  using Maybe = std::optional<at::Tensor>;
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& /*anchor*/, const Maybe& order,
                            const Maybe& offsets, const Maybe& row_weights, int64_t k, double limit,
                            const c10::intrusive_ptr<ExpertsHolder>& weights) {
    const auto some = [](const Maybe& tensor) { return tensor.value_or(at::Tensor()); };
    moe::Kept kept;
    const at::Tensor out =
        moe::forward({x, some(order), some(offsets), some(row_weights), k, values(weights->routed, x.scalar_type()),
                      values(weights->shared, x.scalar_type()), limit, peers_of(*weights, some(offsets))},
                     kept);
    variable_list saved{x, some(order), some(offsets), some(row_weights), kept.routed, kept.shared};
    saved.insert(saved.end(), kept.received.begin(), kept.received.end());
    context->save_for_backward(saved);
    context->saved_data["k"] = k;
    context->saved_data["limit"] = limit;
    context->saved_data["weights"] = c10::IValue::make_capsule(weights);
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const auto& weights = static_cast<ExpertsHolder&>(*context->saved_data["weights"].toCapsule());
    const at::ScalarType type = saved[0].scalar_type();
    const moe::Gradients found = moe::backward(
        {saved[0], saved[1], saved[2], saved[3], context->saved_data["k"].toInt(), values(weights.routed, type),
         values(weights.shared, type), context->saved_data["limit"].toDouble(), peers_of(weights, saved[2])},
        {saved[4], saved[5], {saved.begin() + 6, saved.end()}}, gradients[0], slots(weights.routed), slots(weights.shared));
    variable_list all(8);
    all[0] = found.x, all[4] = found.weights;
    return all;
  }
};

}  // namespace

at::Tensor expert_layer(const at::Tensor& x, const std::optional<RoutedExperts>& routed,
                        const std::optional<ExpertWeights>& shared, double limit) {
  auto weights = c10::make_intrusive<ExpertsHolder>();
  std::array<ExpertLayer::Maybe, 3> rows;
  at::Tensor anchor;
  const auto take = [&](const ExpertWeights& from) {
    const bool first = !anchor.defined();
    for (const Weight& weight : {from.w1, from.w3, from.w2})
      if (first || weight.trainable()) anchor = anchor_of(weight);
  };
  if (routed) {
    weights->routed = routed->experts;
    weights->ranks = routed->ranks;
    rows = {routed->order, routed->offsets, routed->weights};
    take(routed->experts);
  }
  if (shared) {
    weights->shared = *shared;
    take(*shared);
  }
  // The holder outlives the run; tensors of anchors would keep its graph.
  for (auto* held : {&weights->routed, &weights->shared})
    if (*held) (*held)->w1.anchor = (*held)->w3.anchor = (*held)->w2.anchor = at::Tensor();
  return ExpertLayer::apply(x, anchor, rows[0], rows[1], rows[2], routed ? routed->k : 1, limit, weights);
}

}  // namespace hyperparallel::engine
