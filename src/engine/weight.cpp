#include "engine/weight.h"

#include <ATen/Parallel.h>

#include "base/error.h"
#include "engine/weight_holder.h"
#include "kernels/cross_entropy/rows.h"
#include "kernels/rows/op.h"
#include "kernels/types.h"
#include "kernels/with_types.h"

namespace hyperparallel::engine {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// slot [out, in] += dy^T [out, rows] x [rows, in], summed into the master type; is_unset: what lies there is nothing.
void add_product(at::Tensor slot, const at::Tensor& dy, const at::Tensor& x, bool is_unset = false) {
  if (dy.size(0) == 0) {
    if (is_unset) slot.zero_();
  } else if (dy.scalar_type() == slot.scalar_type() && x.scalar_type() == slot.scalar_type()) {
    is_unset ? at::mm_out(slot, dy.t(), x) : slot.addmm_(dy.t(), x);
  } else {
    const at::Tensor product = at::mm(dy.t(), x.to(dy.scalar_type()));
    is_unset ? slot.copy_(product) : slot.add_(product);
  }
}

struct Linear : Function<Linear> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& /*anchor*/, const Weight& weight) {
    save_weight(context, weight);
    context->save_for_backward({x});
    return at::linear(x, weight.value().to(x.scalar_type()));
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    WeightHolder& weight = saved_weight(context);
    const at::Tensor x = context->get_saved_variables()[0];
    const at::Tensor dy = gradients[0];
    at::Tensor dx;
    if (context->needs_input_grad(0)) dx = at::matmul(dy, weight.value(dy.scalar_type()));
    if (weight.store->trainable(weight.id)) {
      const auto [slot, is_unset] = weight.store->open_slot(weight.id);
      add_product(slot, dy.reshape({-1, dy.size(-1)}), x.reshape({-1, x.size(-1)}), is_unset);
    }
    return {dx, Variable(), Variable()};
  }
};

struct BlockLinear : Function<BlockLinear> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& /*anchor*/, const Weight& weight) {
    save_weight(context, weight);
    context->save_for_backward({x});
    const int64_t tokens = x.size(0), blocks = x.size(1), in = x.size(2);
    const at::Tensor w = weight.value().to(x.scalar_type()).view({blocks, -1, in});  // [blocks, out, in]
    return at::bmm(x.transpose(0, 1), w.transpose(1, 2)).transpose(0, 1).reshape({tokens, weight.value().size(0)});
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    WeightHolder& weight = saved_weight(context);
    const at::Tensor x = context->get_saved_variables()[0];
    const int64_t tokens = x.size(0), blocks = x.size(1), in = x.size(2);
    const at::Tensor w = weight.value(x.scalar_type()).view({blocks, -1, in});
    const at::Tensor dy = gradients[0].reshape({tokens, blocks, w.size(1)}).transpose(0, 1);  // [blocks, tokens, out]
    at::Tensor dx;
    if (context->needs_input_grad(0)) dx = at::bmm(dy, w).transpose(0, 1);
    if (weight.store->trainable(weight.id)) {
      const auto [slot, is_unset] = weight.store->open_slot(weight.id);
      const at::Tensor by_block = slot.view({blocks, -1, in});
      for (int64_t b = 0; b < blocks; ++b) add_product(by_block[b], dy[b], x.select(1, b), is_unset);
    }
    return {dx, Variable(), Variable()};
  }
};

// Calls body(group, first row, rows) for every group that has rows; groups run on different threads, each on one.
template <class Body>
void for_each_group(const at::Tensor& offsets, const Body& body) {
  const int64_t* offset = offsets.const_data_ptr<int64_t>();
  at::parallel_for(0, offsets.size(0) - 1, 1, [&](int64_t begin, int64_t end) {
    at::NoGradGuard no_grad;
    for (int64_t group = begin; group < end; ++group) {
      if (offset[group + 1] > offset[group]) body(group, offset[group], offset[group + 1] - offset[group]);
    }
  });
}

struct GroupedLinear : Function<GroupedLinear> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& /*anchor*/,
                            const at::Tensor& offsets, const Weight& weight) {
    save_weight(context, weight);
    context->save_for_backward({x, offsets});
    const at::Tensor w = weight.value().to(x.scalar_type()), input = x.detach();
    at::Tensor y = at::empty({x.size(0), w.size(1)}, x.options());
    for_each_group(offsets, [&](int64_t group, int64_t first, int64_t rows) {
      at::Tensor out = y.narrow(0, first, rows);
      at::mm_out(out, input.narrow(0, first, rows), w[group].t());
    });
    return y;
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    WeightHolder& weight = saved_weight(context);
    const variable_list saved = context->get_saved_variables();
    const at::Tensor x = saved[0].detach(), offsets = saved[1], dy = gradients[0].contiguous();
    const at::Tensor w = weight.value(x.scalar_type());
    const bool wants_dx = context->needs_input_grad(0), wants_dw = weight.store->trainable(weight.id);
    at::Tensor dx, slot;
    if (wants_dx) dx = at::empty_like(x);
    if (wants_dw) slot = weight.store->slot(weight.id);
    for_each_group(offsets, [&](int64_t group, int64_t first, int64_t rows) {
      const at::Tensor dy_rows = dy.narrow(0, first, rows);
      if (wants_dx) {
        at::Tensor out = dx.narrow(0, first, rows);
        at::mm_out(out, dy_rows, w[group]);
      }
      if (wants_dw) add_product(slot[group], dy_rows, x.narrow(0, first, rows));
    });
    return {dx, Variable(), Variable(), Variable()};
  }
};

struct Embedding : Function<Embedding> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& ids, const at::Tensor& /*anchor*/, const Weight& weight) {
    save_weight(context, weight);
    context->save_for_backward({ids});
    at::Tensor rows = weight.value().index_select(0, ids.clamp_min(0));
    return rows.masked_fill_(ids.lt(0).unsqueeze(1), 0);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    WeightHolder& weight = saved_weight(context);
    if (weight.store->trainable(weight.id)) {
      kernels::scatter_add_rows(weight.store->slot(weight.id), context->get_saved_variables()[0], gradients[0]);
    }
    return {Variable(), Variable(), Variable()};
  }
};

struct TableRows : Function<TableRows> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& ids, const at::Tensor& /*anchor*/, const Weight& table,
                            at::ScalarType type) {
    save_weight(context, table);
    context->save_for_backward({ids});
    return table.store->table(table.id).look_up(ids).to(type);
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    WeightHolder& table = saved_weight(context);
    if (table.store->trainable(table.id)) {
      const at::Tensor ids = context->get_saved_variables()[0];
      if (ids.ge(0).all().item<bool>()) {
        table.store->add_row_gradients(table.id, ids, gradients[0]);
      } else {
        const at::Tensor used = ids.ge(0).nonzero().flatten();
        table.store->add_row_gradients(table.id, ids.index_select(0, used), gradients[0].index_select(0, used));
      }
    }
    return {Variable(), Variable(), Variable(), Variable()};
  }
};

// log(sum of exp) over all words and the logit of the target, from what each rank of the part's group found among its words.
// Both [rows].
void combine_parts(const VocabularyPart& part, at::Tensor& log_sums, at::Tensor& target_logits) {
  if (part.group == nullptr) return;
  const at::Tensor mine = at::stack({log_sums, target_logits}).unsqueeze(0);  // [1, 2, rows]
  const at::Tensor all =
      part.group->all_gather(mine, std::vector<int64_t>(part.group->size(), 1), "cross_entropy").wait();  // [ranks, 2, rows]
  log_sums = all.select(1, 0).logsumexp(0);
  target_logits = all.select(1, 1).sum(0);
}

// body(first, count, S{}, T{}) for blocks of the rows of logits [rows, words], S being how they lie in memory.
template <class Body>
void over_rows(const at::Tensor& logits, const Body& body) {
  kernels::with_types(logits.scalar_type(), [&](auto s, auto t) {
    at::parallel_for(0, logits.size(0), 1, [&](int64_t begin, int64_t end) { body(begin, end - begin, s, t); });
  });
}

at::Tensor vocabulary_log_sums(const at::Tensor& logits) {
  at::Tensor sums = at::empty({logits.size(0)}, logits.options().dtype(kernels::math_type(logits.scalar_type())));
  const int64_t words = logits.size(1);
  over_rows(logits, [&](int64_t first, int64_t count, auto s, auto t) {
    kernels::cross_entropy::log_sums(count, words, kernels::data<decltype(s)>(logits) + first * words,
                                     kernels::writable<decltype(t)>(sums) + first);
  });
  return sums;
}

// kernels::cross_entropy::derive of logits [rows, words].
void derive_vocabulary(const at::Tensor& log_sums, const at::Tensor& factors, const at::Tensor& targets,
                       const at::Tensor& logits) {
  const int64_t words = logits.size(1);
  const at::Tensor by_row = log_sums.contiguous(), factor = factors.contiguous(), target = targets.contiguous();
  over_rows(logits, [&](int64_t first, int64_t count, auto s, auto t) {
    using T = decltype(t);
    kernels::cross_entropy::derive(count, words, kernels::data<T>(by_row) + first, kernels::data<T>(factor) + first,
                                   target.const_data_ptr<int64_t>() + first,
                                   kernels::writable<decltype(s)>(logits) + first * words);
  });
}

struct LinearCrossEntropy : Function<LinearCrossEntropy> {
  // Only scored rows meet the vocabulary.
  static variable_list forward(AutogradContext* context, const at::Tensor& hidden, const at::Tensor& /*anchor*/,
                               const at::Tensor& targets, const Weight& weight, int64_t chunk, const VocabularyPart& part,
                               double z, bool derive) {
    save_weight(context, weight);
    const at::Tensor scored = targets.ge(0).nonzero().flatten();  // [scored]
    const at::Tensor rows = hidden.detach().index_select(0, scored);
    const at::Tensor w = weight.value().to(hidden.scalar_type());
    const at::Tensor ids = targets.index_select(0, scored) - part.first;
    const at::Tensor elsewhere = ids.lt(0).logical_or(ids.ge(w.size(0))), own = ids.masked_fill(elsewhere, -1);  // [scored]
    const auto options = hidden.options().dtype(kernels::math_type(hidden.scalar_type()));
    const at::Tensor losses = at::empty({scored.size(0)}, options), log_sums = at::empty({scored.size(0)}, options);
    at::Tensor dx, dw;  // of sum + z * squares
    if (derive) dx = at::empty_like(rows);
    if (derive && weight.store->trainable(weight.id)) dw = at::zeros(w.sizes(), options.dtype(weight.store->master_type()));
    for (int64_t first = 0; first < scored.size(0); first += chunk) {
      const int64_t count = std::min(chunk, scored.size(0) - first);
      const auto cut = [&](const at::Tensor& x) { return x.narrow(0, first, count); };
      at::Tensor d = at::linear(cut(rows), w);  // [chunk, vocabulary]: logits, then their gradient
      at::Tensor log_sum = vocabulary_log_sums(d);
      at::Tensor target = d.gather(1, cut(own).clamp_min(0).unsqueeze(1)).squeeze(1).to(options.dtype());
      target.masked_fill_(cut(elsewhere), 0);
      combine_parts(part, log_sum, target);
      cut(losses).copy_(log_sum - target);
      cut(log_sums).copy_(log_sum);
      if (!derive) continue;
      derive_vocabulary(log_sum, log_sum.mul(2 * z).add_(1), cut(own), d);
      at::Tensor out = cut(dx);
      at::mm_out(out, d, w);
      if (dw.defined()) add_product(dw, d, cut(rows));
    }
    if (derive) context->save_for_backward({scored, dx, dw});
    context->saved_data["tokens"] = hidden.size(0);
    context->saved_data["z"] = z;
    const at::Tensor token_loss = at::zeros({hidden.size(0)}, options).index_copy_(0, scored, losses);
    context->mark_non_differentiable({token_loss});
    return {losses.sum(), log_sums.square().sum(), token_loss};
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    WeightHolder& weight = saved_weight(context);
    const variable_list saved = context->get_saved_variables();
    const at::Tensor scored = saved[0], dx = saved[1];
    const auto number = [](const at::Tensor& t) { return t.defined() ? t.item<double>() : 0; };
    const double seed = number(gradients[0]), square_seed = number(gradients[1]), z = context->saved_data["z"].toDouble();
    HP_CHECK(std::abs(square_seed - z * seed) <= 1e-6 * std::abs(z * seed), "a z-loss of {} is derived with {} : {}", z, seed,
             square_seed);
    at::Tensor all = at::zeros({context->saved_data["tokens"].toInt(), dx.size(1)}, dx.options());
    all.index_copy_(0, scored, dx * seed);
    if (saved[2].defined()) weight.store->move_to_slot(weight.id, saved[2].detach().mul_(seed));
    return {all, Variable(), Variable(), Variable(), Variable(), Variable(), Variable(), Variable()};
  }
};

}  // namespace

at::Tensor linear(const at::Tensor& x, const Weight& weight) {
  return Linear::apply(x, anchor_of(weight), weight);
}
at::Tensor block_linear(const at::Tensor& x, const Weight& weight) {
  return BlockLinear::apply(x, anchor_of(weight), weight);
}
at::Tensor grouped_linear(const at::Tensor& x, const at::Tensor& offsets, const Weight& weight) {
  return GroupedLinear::apply(x.contiguous(), anchor_of(weight), offsets, weight);
}
at::Tensor embedding(const at::Tensor& ids, const Weight& weight) {
  return Embedding::apply(ids, anchor_of(weight), weight);
}
at::Tensor table_rows(const at::Tensor& ids, const Weight& table, at::ScalarType type) {
  return TableRows::apply(ids, anchor_of(table), table, type);
}
CrossEntropy linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& targets, const Weight& weight, int64_t chunk,
                                  const VocabularyPart& part, double z) {
  const at::Tensor anchor = anchor_of(weight);
  const bool derive = at::GradMode::is_enabled() && (hidden.requires_grad() || anchor.requires_grad());
  const variable_list found = LinearCrossEntropy::apply(hidden, anchor, targets, weight, chunk, part, z, derive);
  return {found[0], found[1], found[2]};
}

}  // namespace hyperparallel::engine
