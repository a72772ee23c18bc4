#include "kernels/indexer/dense_loss.h"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <limits>

#include "kernels/types.h"

namespace hyperparallel::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kProducts = 8 << 20;
constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

struct DenseIndexerLoss : torch::autograd::Function<DenseIndexerLoss> {
  // `queries` and `teacher` without graphs beside the tensors that have one.
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& weights, const at::Tensor& keys,
                            const IndexQueries& queries, const DenseTeacher& teacher, const at::Tensor& counted) {
    const auto math = at::TensorOptions().dtype(math_type(q.scalar_type()));
    at::Tensor dq = at::zeros(q.sizes(), math), dw = at::zeros(weights.sizes(), math), dkeys = at::zeros(keys.sizes(), math);
    at::Tensor loss = at::zeros({}, math);
    const auto summed = [&](const at::Tensor& part) { return queries.sum ? queries.sum(part) : part; };
    const int64_t heads = std::max({queries.heads, q.size(1), int64_t{1}}), groups = std::max<int64_t>(1, keys.size(0));
    const int64_t chunk = std::clamp<int64_t>(kProducts / (heads * groups), 1, teacher.shape.chunk);  // the same on all ranks
    for (int64_t first = 0; first < q.size(0); first += chunk) {
      const int64_t rows = std::min(chunk, q.size(0) - first);
      const GroupAttention attention =
          visible_attention(teacher.q, teacher.window_kv, teacher.compressed_kv, {queries.first, queries.count}, teacher.sink,
                            teacher.row, teacher.start, teacher.shape, teacher.windowed, first, rows);
      const int64_t width = attention.sums.size(1);
      if (width == 0) continue;
      const at::Tensor own_q = to_math(q.narrow(0, first, rows)),
                       own_keys = to_math(keys.narrow(0, attention.first_group, width)),
                       own_w = to_math(weights.narrow(0, first, rows)) * queries.scale();  // [rows, heads]
      const at::Tensor flat_q = own_q.reshape({rows * q.size(1), -1});
      const at::Tensor products = at::mm(flat_q, own_keys.t()).relu_().view({rows, q.size(1), width});
      const at::Tensor scores = summed(at::bmm(own_w.unsqueeze(1), products).squeeze(1));  // [rows, groups]
      const at::Tensor sums = summed(attention.sums), total = sums.sum(1, /*keepdim=*/true);
      const at::Tensor aim = sums / total.masked_fill(total.eq(0), 1);
      const at::Tensor nothing = attention.blocked.all(1, /*keepdim=*/true);
      const at::Tensor student =
          at::log_softmax(scores.masked_fill(attention.blocked, kMinusInfinity), 1).masked_fill(attention.blocked, 0);
      const at::Tensor counts = counted.narrow(0, first, rows).unsqueeze(1).logical_and(nothing.logical_not());
      loss += (aim * (aim.masked_fill(aim.eq(0), 1).log() - student)).masked_fill(counts.logical_not(), 0).sum();
      const at::Tensor d = (student.exp() - aim).masked_fill_(attention.blocked.logical_or(counts.logical_not()), 0);
      dw.narrow(0, first, rows).copy_(at::bmm(products, d.unsqueeze(2)).squeeze(2) * queries.scale());
      const at::Tensor through = (own_w.unsqueeze(2) * d.unsqueeze(1)).mul_(products.gt(0)).view({-1, width});
      dq.narrow(0, first, rows).copy_(at::mm(through, own_keys).view(own_q.sizes()));
      dkeys.narrow(0, attention.first_group, width).addmm_(through.t(), flat_q);
    }
    context->save_for_backward({dq, dw, dkeys});
    context->saved_data["type"] = static_cast<int64_t>(q.scalar_type());
    return loss;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const auto type = static_cast<at::ScalarType>(context->saved_data["type"].toInt());
    const auto scaled = [&](const at::Tensor& d) { return (d * gradients[0]).to(type); };
    return {scaled(saved[0]), scaled(saved[1]), scaled(saved[2]), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

}  // namespace

at::Tensor dense_indexer_loss(const IndexQueries& queries, const at::Tensor& keys, const DenseTeacher& teacher,
                              const at::Tensor& counted) {
  IndexQueries own = queries;
  own.first = queries.first.contiguous();
  own.count = queries.count.contiguous();
  own.q = queries.q.detach();
  return DenseIndexerLoss::apply(queries.q, queries.weights, keys, own, teacher, counted);
}

}  // namespace hyperparallel::kernels
