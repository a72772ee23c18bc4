#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "kernels/attention/fused.h"
#include "kernels/attention/op.h"
#include "kernels/rows/op.h"
#include "kernels/types.h"

namespace hyperparallel::kernels {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// One chunk of queries with the keys it can see.
struct Chunk {
  int64_t first, rows;  // queries
  int64_t first_key;    // of the window keys any of them sees
  at::Tensor q;         // [rows, heads, d]
  at::Tensor window;    // [keys, d]
  at::Tensor selected;  // [rows, k, d], or undefined
  at::Tensor blocked;   // bool [rows, keys]: outside the window or the document
  at::Tensor empty;     // bool [rows, k]: no group in this place
  at::Tensor ids;       // int64 [rows * k], -1 where empty
  // Instead of chosen groups: all that any of the queries sees.
  int64_t first_group = 0;
  at::Tensor groups;  // [groups, d], or undefined
  at::Tensor unseen;  // bool [rows, groups]: not visible to the query
};

// Of queries, groups `from` .. `end - 1` in all.
struct GroupRange {
  int64_t from, end;
};
GroupRange range_of(const VisibleGroups& groups, int64_t first, int64_t rows) {
  const int64_t *begin = groups.first.const_data_ptr<int64_t>(), *count = groups.count.const_data_ptr<int64_t>();
  GroupRange range{std::numeric_limits<int64_t>::max(), 0};
  for (int64_t t = first; t < first + rows; ++t) {
    if (count[t] == 0) continue;
    range.from = std::min(range.from, begin[t]);
    range.end = std::max(range.end, begin[t] + count[t]);
  }
  return range.end == 0 ? GroupRange{0, 0} : range;
}
at::Tensor unseen_groups(const VisibleGroups& groups, const GroupRange& range, int64_t first, int64_t rows) {
  const at::Tensor from = groups.first.narrow(0, first, rows).unsqueeze(1),
                   count = groups.count.narrow(0, first, rows).unsqueeze(1);
  const at::Tensor group = at::arange(range.from, range.end, at::kLong).unsqueeze(0);
  return group.lt(from).logical_or_(group.ge(from + count));
}

constexpr int64_t kDenseLogits = 8 << 20;

// The queries and everything they attend to.
struct Inputs {
  at::Tensor q, window_kv, compressed_kv, topk, sink, row, start;
  AttentionShape shape;
  VisibleGroups visible = {};  // defined: instead of topk

  int64_t oldest_key(int64_t t) const {
    return std::max(row.const_data_ptr<int64_t>()[t] - shape.window + 1, start.const_data_ptr<int64_t>()[t]);
  }

  // How many queries from `first` on make a chunk. There is always one.
  int64_t chunk_rows(int64_t first) const {
    const int64_t most = std::min(shape.chunk, q.size(0) - first), budget = shape.chunk * (shape.chunk + shape.window);
    const int64_t* own = row.const_data_ptr<int64_t>();
    int64_t rows = 1;
    while (rows < most && (rows + 1) * (own[first + rows] + 1 - oldest_key(first)) <= budget) ++rows;
    if (!visible.first.defined()) return rows;
    const GroupRange range = range_of(visible, first, rows);
    return std::clamp<int64_t>(kDenseLogits / std::max<int64_t>(1, q.size(1) * (range.end - range.from)), 1, rows);
  }

  Chunk cut(int64_t first) const { return cut(first, chunk_rows(first)); }
  Chunk cut(int64_t first, int64_t rows) const;
};

Chunk Inputs::cut(int64_t first, int64_t rows) const {
  Chunk chunk;
  chunk.first = first;
  chunk.rows = rows;
  chunk.first_key = oldest_key(first);
  chunk.q = q.narrow(0, first, chunk.rows);
  const int64_t end_key = row.const_data_ptr<int64_t>()[first + chunk.rows - 1] + 1;
  chunk.window = window_kv.slice(0, chunk.first_key, end_key);
  const at::Tensor own = row.narrow(0, first, chunk.rows).unsqueeze(1);                 // [rows, 1]
  const at::Tensor key = at::arange(chunk.first_key, end_key, at::kLong).unsqueeze(0);  // [1, keys]
  const at::Tensor oldest = at::maximum(own - (shape.window - 1), start.narrow(0, first, chunk.rows).unsqueeze(1));
  chunk.blocked = key.lt(oldest).logical_or_(key.gt(own));
  if (visible.first.defined()) {
    const GroupRange range = range_of(visible, first, chunk.rows);
    chunk.first_group = range.from;
    chunk.groups = compressed_kv.slice(0, range.from, range.end);
    chunk.unseen = unseen_groups(visible, range, first, chunk.rows);
  } else if (topk.size(1) > 0 && compressed_kv.size(0) > 0) {
    const at::Tensor chosen = topk.narrow(0, first, chunk.rows);
    chunk.empty = chosen.lt(0);
    chunk.ids = chosen.flatten().to(at::kLong);
    chunk.selected = compressed_kv.index_select(0, chunk.ids.clamp_min(0)).view({chunk.rows, chosen.size(1), -1});
  }
  return chunk;
}

constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

// Scaled, -inf where nothing is seen: [rows, heads, keys] of the window, [rows, heads, k] of the chosen groups, and the sink's.
at::Tensor shared_logits(const at::Tensor& q, const at::Tensor& keys, const at::Tensor& blocked) {
  const int64_t rows = q.size(0), heads = q.size(1), d = q.size(2);
  const double scale = std::pow(static_cast<double>(d), -0.5);
  const at::Tensor logits = to_math(at::matmul(q.reshape({rows * heads, d}), keys.t()) * scale).view({rows, heads, keys.size(0)});
  return logits.masked_fill(blocked.unsqueeze(1), kMinusInfinity);
}
at::Tensor far_logits(const Chunk& chunk, const at::Tensor& q, const at::Tensor& selected) {
  const at::Tensor far = to_math(at::bmm(q, selected.transpose(1, 2)) * std::pow(static_cast<double>(q.size(2)), -0.5));
  return far.masked_fill(chunk.empty.unsqueeze(1), kMinusInfinity);
}
at::Tensor sink_logits(const at::Tensor& q, const at::Tensor& sink) {
  return sink.view({1, -1, 1}).expand({q.size(0), q.size(1), 1});
}

// [rows, heads, d]
at::Tensor attend(const Chunk& chunk, const at::Tensor& q, const at::Tensor& window, const at::Tensor& selected,
                  const at::Tensor& groups, const at::Tensor& sink) {
  const int64_t rows = q.size(0), heads = q.size(1), d = q.size(2);
  std::vector<at::Tensor> logits{shared_logits(q, window, chunk.blocked)};
  if (selected.defined()) logits.push_back(far_logits(chunk, q, selected));
  if (groups.defined()) logits.push_back(shared_logits(q, groups, chunk.unseen));
  logits.push_back(sink_logits(q, sink));
  const at::Tensor p = at::softmax(at::cat(logits, 2), 2).to(q.scalar_type());
  const int64_t keys = window.size(0);
  const auto mixed = [&](int64_t from, const at::Tensor& values) {
    return at::matmul(p.narrow(2, from, values.size(0)).reshape({rows * heads, values.size(0)}), values).view({rows, heads, d});
  };
  at::Tensor out = mixed(0, window);
  if (selected.defined()) out = out + at::bmm(p.narrow(2, keys, selected.size(1)), selected);
  if (groups.defined()) out = out + mixed(keys, groups);
  return out;
}

struct Csa2Attention : torch::autograd::Function<Csa2Attention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& window_kv,
                            const at::Tensor& compressed_kv, const at::Tensor& topk, const at::Tensor& sink,
                            const at::Tensor& row, const at::Tensor& start, AttentionShape shape, VisibleGroups visible) {
    context->save_for_backward({q, window_kv, compressed_kv, topk, sink, row, start, visible.first, visible.count});
    context->saved_data["window"] = shape.window;
    context->saved_data["chunk"] = shape.chunk;
    const Inputs inputs{q, window_kv, compressed_kv, topk, sink, row, start, shape, visible};
    at::Tensor out = at::empty_like(q, at::MemoryFormat::Contiguous);
    for (int64_t first = 0; first < q.size(0);) {
      const Chunk chunk = inputs.cut(first);
      out.narrow(0, first, chunk.rows).copy_(attend(chunk, chunk.q, chunk.window, chunk.selected, chunk.groups, sink));
      first += chunk.rows;
    }
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const Inputs inputs{saved[0].detach(),
                        saved[1].detach(),
                        saved[2].detach(),
                        saved[3],
                        saved[4].detach(),
                        saved[5],
                        saved[6],
                        {context->saved_data["window"].toInt(), context->saved_data["chunk"].toInt()},
                        {saved[7], saved[8]}};
    const auto sum_of = [](const at::Tensor& t) { return at::zeros(t.sizes(), t.options().dtype(math_type(t.scalar_type()))); };
    at::Tensor dq = at::empty_like(inputs.q, at::MemoryFormat::Contiguous), dsink = at::zeros_like(inputs.sink);
    at::Tensor dwindow = sum_of(inputs.window_kv), dcompressed = sum_of(inputs.compressed_kv);
    for (int64_t first = 0; first < inputs.q.size(0);) {
      const Chunk chunk = inputs.cut(first);
      const auto leaf = [](const at::Tensor& tensor) { return tensor.defined() ? tensor.detach().requires_grad_(true) : tensor; };
      variable_list leaves{leaf(chunk.q), leaf(chunk.window), leaf(inputs.sink)};
      const at::Tensor selected = leaf(chunk.selected), groups = leaf(chunk.groups);
      if (selected.defined()) leaves.push_back(selected);
      if (groups.defined()) leaves.push_back(groups);
      at::Tensor out;
      {
        at::AutoGradMode grad(true);
        out = attend(chunk, leaves[0], leaves[1], selected, groups, leaves[2]);
      }
      const variable_list d = torch::autograd::grad({out}, leaves, {gradients[0].narrow(0, first, chunk.rows)});
      dq.narrow(0, first, chunk.rows).copy_(d[0]);
      dwindow.narrow(0, chunk.first_key, d[1].size(0)).add_(d[1]);
      dsink.add_(d[2]);
      if (selected.defined()) scatter_add_rows(dcompressed, chunk.ids, d[3].reshape({-1, inputs.q.size(2)}));
      if (groups.defined()) dcompressed.narrow(0, chunk.first_group, d[3].size(0)).add_(d[3]);
      first += chunk.rows;
    }
    return {dq,
            dwindow.to(inputs.window_kv.scalar_type()),
            dcompressed.to(inputs.compressed_kv.scalar_type()),
            at::Tensor(),
            dsink,
            at::Tensor(),
            at::Tensor(),
            at::Tensor(),
            at::Tensor()};
  }
};

void check(const at::Tensor& q, const at::Tensor& window_kv, const at::Tensor& row, const at::Tensor& start,
           const AttentionShape& shape) {
  HP_CHECK(shape.window >= 1 && shape.chunk >= 1, "attention with a window of {} in chunks of {}", shape.window, shape.chunk);
  HP_CHECK(
      row.sizes() == start.sizes() && row.dim() == 1 && row.size(0) == q.size(0) && row.is_contiguous() && start.is_contiguous(),
      "attention of {} queries with {} own keys and {} starts", q.size(0), row.numel(), start.numel());
  const int64_t* own = row.const_data_ptr<int64_t>();
  const int64_t* oldest = start.const_data_ptr<int64_t>();
  const int64_t tokens = row.numel();
  HP_CHECK(std::is_sorted(own, own + tokens) && std::is_sorted(oldest, oldest + tokens) &&
               (tokens == 0 || (oldest[0] >= 0 && own[tokens - 1] < window_kv.size(0))),
           "own keys and document starts must ascend within {} window keys", window_kv.size(0));
}

}  // namespace

at::Tensor chosen_attention(const at::Tensor& q, const at::Tensor& window_kv, const at::Tensor& compressed_kv,
                            const at::Tensor& topk, const at::Tensor& sink, const at::Tensor& row, const at::Tensor& start,
                            const AttentionShape& shape, bool windowed) {
  const at::NoGradGuard constant;
  if (shape.fused)
    return attention::fused_chosen_attention(q, window_kv, compressed_kv, topk, sink, row, start, shape.window, windowed);
  const Inputs inputs{q, window_kv, compressed_kv, topk, sink, row, start, shape};
  at::Tensor sums = at::zeros({q.size(0), topk.size(1)}, q.options().dtype(math_type(q.scalar_type())));
  for (int64_t first = 0; first < q.size(0);) {
    const Chunk chunk = inputs.cut(first);
    if (chunk.selected.defined()) {
      std::vector<at::Tensor> logits{far_logits(chunk, chunk.q, chunk.selected), sink_logits(chunk.q, sink)};
      if (windowed) logits.push_back(shared_logits(chunk.q, chunk.window, chunk.blocked));
      const at::Tensor p = at::softmax(at::cat(logits, 2), 2).narrow(2, 0, topk.size(1));
      sums.narrow(0, first, chunk.rows).copy_(p.sum(1));
    }
    first += chunk.rows;
  }
  return sums;
}

GroupAttention visible_attention(const at::Tensor& q, const at::Tensor& window_kv, const at::Tensor& compressed_kv,
                                 const VisibleGroups& groups, const at::Tensor& sink, const at::Tensor& row,
                                 const at::Tensor& start, const AttentionShape& shape, bool windowed, int64_t first,
                                 int64_t rows) {
  const at::NoGradGuard constant;
  const Inputs inputs{q, window_kv, compressed_kv, {}, sink, row, start, shape, groups};
  const Chunk chunk = inputs.cut(first, rows);
  std::vector<at::Tensor> logits{shared_logits(chunk.q, chunk.groups, chunk.unseen), sink_logits(chunk.q, sink)};
  if (windowed) logits.push_back(shared_logits(chunk.q, chunk.window, chunk.blocked));
  const at::Tensor p = at::softmax(at::cat(logits, 2), 2).narrow(2, 0, chunk.groups.size(0));
  return {chunk.first_group, p.sum(1), chunk.unseen};
}

at::Tensor csa2_attention(const at::Tensor& q, const at::Tensor& window_kv, const at::Tensor& compressed_kv,
                          const at::Tensor& topk, const at::Tensor& sink, const at::Tensor& row, const at::Tensor& start,
                          const AttentionShape& shape) {
  check(q, window_kv, row, start, shape);
  const bool has_groups = compressed_kv.defined();  // to choose from
  const at::Tensor far = has_groups ? compressed_kv : window_kv.detach().narrow(0, 0, 0);
  const at::Tensor chosen = has_groups ? topk : at::empty({q.size(0), 0}, at::kInt);
  if (shape.fused) return attention::fused_attention(q, window_kv, far, chosen, sink, row, start, shape.window);
  return Csa2Attention::apply(q, window_kv, far, chosen, sink, row, start, shape, VisibleGroups{});
}

at::Tensor dense_attention(const at::Tensor& q, const at::Tensor& window_kv, const at::Tensor& compressed_kv,
                           const VisibleGroups& groups, const at::Tensor& sink, const at::Tensor& row, const at::Tensor& start,
                           const AttentionShape& shape) {
  check(q, window_kv, row, start, shape);
  return Csa2Attention::apply(q, window_kv, compressed_kv, at::empty({q.size(0), 0}, at::kInt), sink, row, start, shape,
                              VisibleGroups{groups.first.contiguous(), groups.count.contiguous()});
}

std::vector<Candidate> attention_candidates() {
  return {{Implementation::kFused, ""}, {Implementation::kReference, ""}};
}

}  // namespace hyperparallel::kernels
