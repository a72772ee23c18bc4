#include "kernels/indexer/loss.h"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "kernels/rows/op.h"
#include "kernels/types.h"

namespace hyperparallel::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// A chunk of queries with the keys of their groups, in the math type.
struct ChosenChunk {
  at::Tensor q;      // [rows, heads, d]
  at::Tensor w;      // [rows, heads], scaled
  at::Tensor ids;    // int64 [rows * k], 0 where empty
  at::Tensor keys;   // [rows, k, d]
  at::Tensor empty;  // bool [rows, k]

  ChosenChunk(const at::Tensor& all_q, const at::Tensor& weights, const at::Tensor& all_keys, const at::Tensor& topk,
              double scale, int64_t first, int64_t rows)
      : q(to_math(all_q.narrow(0, first, rows))), w(to_math(weights.narrow(0, first, rows)) * scale) {
    const at::Tensor chosen = topk.narrow(0, first, rows);
    empty = chosen.lt(0);
    ids = chosen.clamp_min(0).flatten().to(at::kLong);
    keys = to_math(all_keys.index_select(0, ids)).view({rows, chosen.size(1), -1});
  }

  at::Tensor products() const { return at::bmm(q, keys.transpose(1, 2)).relu_(); }  // [rows, heads, k]
};

struct ChosenScores : torch::autograd::Function<ChosenScores> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& weights, const at::Tensor& keys,
                            const at::Tensor& topk, double scale, int64_t chunk) {
    context->save_for_backward({q, weights, keys, topk});
    context->saved_data["scale"] = scale;
    context->saved_data["chunk"] = chunk;
    at::Tensor scores = at::empty({q.size(0), topk.size(1)}, q.options().dtype(math_type(q.scalar_type())));
    for (int64_t first = 0; first < q.size(0); first += chunk) {
      const int64_t rows = std::min(chunk, q.size(0) - first);
      const ChosenChunk part(q, weights, keys, topk, scale, first, rows);
      scores.narrow(0, first, rows).copy_(at::bmm(part.w.unsqueeze(1), part.products()).squeeze(1).masked_fill_(part.empty, 0));
    }
    return scores;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &q = saved[0], &weights = saved[1], &keys = saved[2], &topk = saved[3];
    const double scale = context->saved_data["scale"].toDouble();
    const int64_t chunk = context->saved_data["chunk"].toInt();
    at::Tensor dq = at::empty_like(q, at::MemoryFormat::Contiguous), dw = at::empty_like(weights, at::MemoryFormat::Contiguous);
    at::Tensor dkeys = at::zeros(keys.sizes(), keys.options().dtype(math_type(keys.scalar_type())));
    for (int64_t first = 0; first < q.size(0); first += chunk) {
      const int64_t rows = std::min(chunk, q.size(0) - first);
      const ChosenChunk part(q, weights, keys, topk, scale, first, rows);
      const at::Tensor g = gradients[0].narrow(0, first, rows).masked_fill(part.empty, 0);  // [rows, k]
      const at::Tensor dots = part.products();
      dw.narrow(0, first, rows).copy_(at::bmm(dots, g.unsqueeze(2)).squeeze(2) * scale);
      const at::Tensor d = (part.w.unsqueeze(2) * g.unsqueeze(1)).mul_(dots.gt(0));  // [rows, heads, k]
      dq.narrow(0, first, rows).copy_(at::bmm(d, part.keys));
      scatter_add_rows(dkeys, part.ids, at::bmm(d.transpose(1, 2), part.q).reshape({-1, q.size(2)}));
    }
    return {dq, dw, dkeys.to(keys.scalar_type()), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor chosen_scores(const IndexQueries& queries, const at::Tensor& keys, const at::Tensor& topk, int64_t chunk) {
  if (topk.size(1) == 0 || keys.size(0) == 0)
    return at::zeros({topk.size(0), topk.size(1)}, queries.q.options().dtype(math_type(queries.q.scalar_type())));
  return ChosenScores::apply(queries.q, queries.weights, keys, topk, queries.scale(), chunk);
}

at::Tensor indexer_loss(const at::Tensor& scores, const at::Tensor& attention, const at::Tensor& topk) {
  if (topk.size(1) == 0) return at::zeros({topk.size(0)}, scores.options());
  constexpr double kOut = -1e30;  // finite, so that a place without a group adds 0 and not NaN
  const at::Tensor student = at::log_softmax(scores.masked_fill(topk.lt(0), kOut), 1);
  const at::Tensor sum = attention.sum(1, /*keepdim=*/true);
  const at::Tensor teacher = attention / sum.masked_fill(sum.eq(0), 1);
  return (teacher * (teacher.masked_fill(teacher.eq(0), 1).log() - student)).sum(1);
}

}  // namespace hyperparallel::kernels
