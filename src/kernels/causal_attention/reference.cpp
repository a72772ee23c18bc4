#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "kernels/causal_attention/op.h"
#include "kernels/types.h"

namespace hyperparallel::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// Consecutive queries with the keys that any of them sees, by key head.
struct QueryChunk {
  int64_t first_key, keys;
  int64_t rows, groups, group;  // queries, key heads, query heads of each
  at::Tensor q;                 // [groups, group * rows, d]
  at::Tensor k, v;              // [groups, keys, d]
  at::Tensor p;                 // [groups, group * rows, keys]: the softmax
};

// [rows, heads, d] -> [groups, group * rows, d] in the math type, and back.
at::Tensor by_key_head(const at::Tensor& x, int64_t groups) {
  const int64_t rows = x.size(0), group = x.size(1) / groups;
  return to_math(x).view({rows, groups, group, -1}).permute({1, 2, 0, 3}).reshape({groups, group * rows, -1});
}
at::Tensor by_row(const at::Tensor& x, int64_t rows) {
  const int64_t groups = x.size(0), group = x.size(1) / rows;
  return x.view({groups, group, rows, -1}).permute({2, 0, 1, 3}).reshape({rows, groups * group, -1});
}

double scale_of(const at::Tensor& q) {
  return 1.0 / std::sqrt(static_cast<double>(q.size(-1)));
}

QueryChunk cut(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& first, const at::Tensor& row) {
  QueryChunk chunk;
  chunk.first_key = first.min().item<int64_t>();
  chunk.keys = row.max().item<int64_t>() + 1 - chunk.first_key;
  chunk.rows = q.size(0), chunk.groups = k.size(1), chunk.group = q.size(1) / k.size(1);
  chunk.q = by_key_head(q, chunk.groups);
  chunk.k = to_math(k.narrow(0, chunk.first_key, chunk.keys)).transpose(0, 1).contiguous();
  chunk.v = to_math(v.narrow(0, chunk.first_key, chunk.keys)).transpose(0, 1).contiguous();
  const at::Tensor key = at::arange(chunk.first_key, chunk.first_key + chunk.keys, at::kLong);
  const at::Tensor hidden = key.lt(first.unsqueeze(1)).logical_or_(key.gt(row.unsqueeze(1)));  // [rows, keys]
  const at::Tensor logits =
      at::bmm(chunk.q, chunk.k.transpose(1, 2)).mul_(scale_of(q)).view({chunk.groups, chunk.group, chunk.rows, chunk.keys});
  chunk.p = at::softmax(logits.masked_fill_(hidden, -std::numeric_limits<double>::infinity()), -1)
                .view({chunk.groups, chunk.group * chunk.rows, chunk.keys});
  return chunk;
}

struct CausalAttention : torch::autograd::Function<CausalAttention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const at::Tensor& first, const at::Tensor& row, int64_t chunk_rows) {
    context->save_for_backward({q, k, v, first, row});
    context->saved_data["chunk"] = chunk_rows;
    at::Tensor out = at::empty_like(q, at::MemoryFormat::Contiguous);
    for (int64_t at = 0; at < q.size(0); at += chunk_rows) {
      const int64_t end = std::min(at + chunk_rows, q.size(0));
      const QueryChunk chunk = cut(q.slice(0, at, end), k, v, first.slice(0, at, end), row.slice(0, at, end));
      out.slice(0, at, end).copy_(by_row(at::bmm(chunk.p, chunk.v), chunk.rows));
    }
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor q = saved[0].detach(), k = saved[1].detach(), v = saved[2].detach();
    const int64_t chunk_rows = context->saved_data["chunk"].toInt();
    at::Tensor dq = at::empty_like(q, at::MemoryFormat::Contiguous);
    // [kv heads, keys, d]
    const auto sums = q.options().dtype(math_type(q.scalar_type()));
    const at::Tensor dk = at::zeros({k.size(1), k.size(0), k.size(2)}, sums), dv = at::zeros_like(dk);
    for (int64_t at = 0; at < q.size(0); at += chunk_rows) {
      const int64_t end = std::min(at + chunk_rows, q.size(0));
      const QueryChunk chunk = cut(q.slice(0, at, end), k, v, saved[3].slice(0, at, end), saved[4].slice(0, at, end));
      const at::Tensor dout = by_key_head(gradients[0].slice(0, at, end), chunk.groups);
      dv.narrow(1, chunk.first_key, chunk.keys).add_(at::bmm(chunk.p.transpose(1, 2), dout));
      const at::Tensor dp = at::bmm(dout, chunk.v.transpose(1, 2));
      const at::Tensor ds = (dp - (dp * chunk.p).sum(-1, /*keepdim=*/true)).mul_(chunk.p).mul_(scale_of(q));
      dq.slice(0, at, end).copy_(by_row(at::bmm(ds, chunk.k), chunk.rows));
      dk.narrow(1, chunk.first_key, chunk.keys).add_(at::bmm(ds.transpose(1, 2), chunk.q));
    }
    return {
        dq,          dk.transpose(0, 1).to(k.scalar_type()), dv.transpose(0, 1).to(v.scalar_type()), at::Tensor(), at::Tensor(),
        at::Tensor()};
  }
};

}  // namespace

at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& first,
                            const at::Tensor& row, int64_t chunk) {
  HP_CHECK(q.dim() == 3 && k.sizes() == v.sizes() && q.size(2) == k.size(2) && q.size(1) % k.size(1) == 0 && chunk > 0,
           "attention of [{}] over [{}]", fmt::join(q.sizes().vec(), ", "), fmt::join(k.sizes().vec(), ", "));
  return CausalAttention::apply(q, k, v, first, row, chunk);
}

}  // namespace hyperparallel::kernels
