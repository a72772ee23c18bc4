#include "kernels/attention/fused.h"

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "base/error.h"
#include "kernels/attention/tokens.h"
#include "kernels/types.h"

namespace hyperparallel::kernels::attention {

// NOTE [Parts]: gradients of shared keys are sums over queries. Queries are cut into parts, each with sums of its own, which are
// added up in order; how many depends on sizes alone, so bits do not depend on the number of threads.
int64_t gradient_parts(int64_t tokens, int64_t groups, int64_t d, size_t element) {
  constexpr int64_t kMostBytes = 128 << 20, kMostParts = 16, kLeastTokens = 32;
  const int64_t bytes = std::max<int64_t>(1, groups * d * static_cast<int64_t>(element));
  return std::clamp<int64_t>(std::min(kMostBytes / bytes, tokens / kLeastTokens), tokens >= 2 * kLeastTokens ? 2 : 1, kMostParts);
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// All tensors of one call in the math type T, contiguous.
template <class T>
struct Problem {
  at::Tensor q, window_kv, compressed_kv, topk, sink, row, start;
  int64_t window, tokens, heads, d, k, groups;
  bool rounds;

  Problem(const variable_list& given, int64_t window_of)
      : q(math(given[0])),
        window_kv(math(given[1])),
        compressed_kv(math(given[2])),
        topk(given[3].contiguous()),
        sink(math(given[4])),
        row(given[5].contiguous()),
        start(given[6].contiguous()),
        window(window_of),
        tokens(q.size(0)),
        heads(q.size(1)),
        d(q.size(2)),
        k(topk.size(1)),
        groups(compressed_kv.size(0)),
        rounds(given[0].scalar_type() == at::kBFloat16) {}

  static at::Tensor math(const at::Tensor& x) { return to_math(x.detach()).contiguous(); }
  static const T* data(const at::Tensor& x) { return x.const_data_ptr<T>(); }

  int64_t oldest_key(int64_t t) const {
    return std::max(row.const_data_ptr<int64_t>()[t] - window + 1, start.const_data_ptr<int64_t>()[t]);
  }
  int64_t own_key(int64_t t) const { return row.const_data_ptr<int64_t>()[t]; }

  // Rows of the window, then of the chosen groups, from these bases.
  template <class Row>
  int64_t rows_of(int64_t t, Row* near, int64_t first_key, Row* far, Row** rows) const {
    int64_t count = 0;
    for (int64_t key = oldest_key(t); key <= own_key(t); ++key) rows[count++] = near + (key - first_key) * d;
    if (groups == 0) return count;
    const int32_t* chosen = topk.const_data_ptr<int32_t>() + t * k;
    for (int64_t i = 0; i < k; ++i) {
      if (chosen[i] < 0) continue;
      HP_CHECK(chosen[i] < groups, "group {} of {}", chosen[i], groups);
      rows[count++] = far + chosen[i] * d;
    }
    return count;
  }
  Query<T> query(int64_t t, std::vector<const T*>& keys) const {
    const int64_t count = rows_of(t, data(window_kv), 0, data(compressed_kv), keys.data());
    return {heads, d, data(q) + t * heads * d, keys.data(), count, data(sink), rounds};
  }
};

constexpr int64_t kTokens = 16;  // of a task

template <class T>
void forward_of(const Problem<T>& p, at::Tensor& out) {
  T* to = out.mutable_data_ptr<T>();
  at::parallel_for(0, p.tokens, kTokens, [&](int64_t begin, int64_t end) {
    TokenAttention<T> attention(p.heads, p.d, p.window + p.k);
    std::vector<const T*> keys(p.window + p.k);
    for (int64_t t = begin; t < end; ++t) attention.forward(p.query(t, keys), to + t * p.heads * p.d);
  });
}

struct Part {
  int64_t first, end;          // queries
  int64_t first_key, end_key;  // of the window keys that any of them sees
  at::Tensor dwindow, dcompressed, dsink;
};

template <class T>
variable_list backward_of(const Problem<T>& p, const at::Tensor& gradient) {
  const auto options = p.q.options();
  const int64_t count = gradient_parts(p.tokens, p.groups, p.d, sizeof(T));
  std::vector<Part> parts;
  for (int64_t i = 0; i < count; ++i) {
    Part part{p.tokens * i / count, p.tokens * (i + 1) / count, 0, 0, {}, {}, {}};
    if (part.end > part.first) {
      part.first_key = p.oldest_key(part.first);
      part.end_key = p.own_key(part.end - 1) + 1;
    }
    parts.push_back(std::move(part));
  }
  at::Tensor dq = at::empty_like(p.q);
  const T* g = gradient.const_data_ptr<T>();
  at::parallel_for(0, count, 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      Part& part = parts[i];
      part.dwindow = at::zeros({part.end_key - part.first_key, p.d}, options);
      part.dcompressed = at::zeros({p.groups, p.d}, options);
      part.dsink = at::zeros({p.heads}, options);
      TokenAttention<T> attention(p.heads, p.d, p.window + p.k);
      std::vector<const T*> keys(p.window + p.k);
      std::vector<T*> dkeys(p.window + p.k);
      for (int64_t t = part.first; t < part.end; ++t) {
        const Query<T> query = p.query(t, keys);
        p.rows_of(t, part.dwindow.mutable_data_ptr<T>(), part.first_key, part.dcompressed.mutable_data_ptr<T>(), dkeys.data());
        attention.backward(query, g + t * p.heads * p.d, dq.mutable_data_ptr<T>() + t * p.heads * p.d, dkeys.data(),
                           part.dsink.mutable_data_ptr<T>());
      }
    }
  });
  at::Tensor dwindow = at::zeros_like(p.window_kv), dsink = at::zeros_like(p.sink);
  at::Tensor dcompressed = parts[0].dcompressed;
  for (size_t i = 0; i < parts.size(); ++i) {
    dwindow.narrow(0, parts[i].first_key, parts[i].dwindow.size(0)).add_(parts[i].dwindow);
    dsink.add_(parts[i].dsink);
    if (i > 0) dcompressed.add_(parts[i].dcompressed);
  }
  return {dq, dwindow, dcompressed, dsink};
}

struct FusedAttention : torch::autograd::Function<FusedAttention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& window_kv,
                            const at::Tensor& compressed_kv, const at::Tensor& topk, const at::Tensor& sink,
                            const at::Tensor& row, const at::Tensor& start, int64_t window) {
    const variable_list given{q, window_kv, compressed_kv, topk, sink, row, start};
    const auto options = q.options().dtype(math_type(q.scalar_type()));
    at::Tensor out = at::empty(q.sizes(), options);
    if (options.dtype() == at::kDouble) {
      forward_of(Problem<double>(given, window), out);
    } else {
      forward_of(Problem<float>(given, window), out);
    }
    context->save_for_backward({q, window_kv, compressed_kv, topk, sink, row, start});
    context->saved_data["window"] = window;
    return out.to(q.scalar_type());
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const int64_t window = context->saved_data["window"].toInt();
    const at::Tensor gradient = to_math(gradients[0]).contiguous();
    const variable_list d = gradient.scalar_type() == at::kDouble ? backward_of(Problem<double>(saved, window), gradient)
                                                                  : backward_of(Problem<float>(saved, window), gradient);
    const at::Tensor none;
    return {d[0].to(saved[0].scalar_type()),
            d[1].to(saved[1].scalar_type()),
            d[2].to(saved[2].scalar_type()),
            none,
            d[3].to(saved[4].scalar_type()),
            none,
            none,
            none};
  }
};

}  // namespace

at::Tensor fused_attention(const at::Tensor& q, const at::Tensor& window_kv, const at::Tensor& compressed_kv,
                           const at::Tensor& topk, const at::Tensor& sink, const at::Tensor& row, const at::Tensor& start,
                           int64_t window) {
  return FusedAttention::apply(q, window_kv, compressed_kv, topk.to(at::kInt), sink, row, start, window);
}

namespace {

template <class T>
at::Tensor chosen_of(const Problem<T>& p, bool windowed) {
  at::Tensor sums = at::zeros({p.tokens, p.k}, p.q.options());
  T* to = sums.mutable_data_ptr<T>();
  const int32_t* topk = p.topk.template const_data_ptr<int32_t>();
  at::parallel_for(0, p.tokens, kTokens, [&](int64_t begin, int64_t end) {
    TokenAttention<T> attention(p.heads, p.d, p.window + p.k);
    std::vector<const T*> keys(p.window + p.k);
    std::vector<T> found(p.window + p.k);
    for (int64_t t = begin; t < end; ++t) {
      Query<T> query = p.query(t, keys);
      const int64_t near = p.own_key(t) - p.oldest_key(t) + 1;
      if (!windowed) query.keys += near, query.count -= near;
      std::fill_n(found.begin(), query.count, T(0));
      attention.add_attention(query, found.data());
      const T* next = found.data() + (windowed ? near : 0);
      for (int64_t i = 0; i < p.k; ++i) {
        if (p.groups > 0 && topk[t * p.k + i] >= 0) to[t * p.k + i] = *next++;
      }
    }
  });
  return sums;
}

}  // namespace

at::Tensor fused_chosen_attention(const at::Tensor& q, const at::Tensor& window_kv, const at::Tensor& compressed_kv,
                                  const at::Tensor& topk, const at::Tensor& sink, const at::Tensor& row, const at::Tensor& start,
                                  int64_t window, bool windowed) {
  const variable_list given{q, window_kv, compressed_kv, topk.to(at::kInt), sink, row, start};
  return math_type(q.scalar_type()) == at::kDouble ? chosen_of(Problem<double>(given, window), windowed)
                                                   : chosen_of(Problem<float>(given, window), windowed);
}

}  // namespace hyperparallel::kernels::attention
