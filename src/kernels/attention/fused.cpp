#include "kernels/attention/fused.h"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "base/error.h"
#include "kernels/attention/amx.h"
#include "kernels/attention/pairs.h"
#include "kernels/attention/tokens.h"
#include "kernels/row_sums.h"
#include "kernels/types.h"
#include "kernels/with_types.h"
#include "runtime/run.h"

namespace hyperparallel::kernels::attention {

// NOTE [Parts]: gradients of shared keys are sums over queries. Queries are cut into parts, each with sums of its own, which are
// added up in order; how many depends on sizes alone, so bits do not depend on the number of threads.
int64_t gradient_parts(int64_t tokens, int64_t groups, int64_t d, size_t element) {
  constexpr int64_t kMostBytes = 128 << 20, kMostParts = 16, kLeastTokens = 32;
  const int64_t bytes = std::max<int64_t>(1, groups * d * static_cast<int64_t>(element));
  return std::clamp<int64_t>(std::min(kMostBytes / bytes, tokens / kLeastTokens), tokens >= 2 * kLeastTokens ? 2 : 1, kMostParts);
}

bool takes_pairs(at::ScalarType type, int64_t d) {
  return type == at::kBFloat16 && PairAttention::takes(d);
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// All tensors of one call, contiguous: q and keys as E, in the math type or BF16 as they are; the sink in the math type.
template <class E, class Kernel>
struct Problem {
  using Element = E;
  using T = typename Query<E>::T;
  using Attention = Kernel;
  at::Tensor q, window_kv, compressed_kv, topk, sink, row, start;
  int64_t window, tokens, heads, d, k, groups;
  bool rounds;
  const int64_t *own, *first;  // of row and start

  Problem(const variable_list& given, int64_t window_of)
      : q(elements(given[0])),
        window_kv(elements(given[1])),
        compressed_kv(elements(given[2])),
        topk(given[3].contiguous()),
        sink(to_math(given[4].detach()).contiguous()),
        row(given[5].contiguous()),
        start(given[6].contiguous()),
        window(window_of),
        tokens(q.size(0)),
        heads(q.size(1)),
        d(q.size(2)),
        k(topk.size(1)),
        groups(compressed_kv.size(0)),
        rounds(given[0].scalar_type() == at::kBFloat16),
        own(row.const_data_ptr<int64_t>()),
        first(start.const_data_ptr<int64_t>()) {}

  static at::Tensor elements(const at::Tensor& x) {
    return std::is_same_v<E, Bfloat16Bits> ? x.detach().contiguous() : to_math(x.detach()).contiguous();
  }
  at::TensorOptions math() const { return sink.options(); }

  int64_t oldest_key(int64_t t) const { return std::max(own[t] - window + 1, first[t]); }
  int64_t own_key(int64_t t) const { return own[t]; }

  // Behind the last group that queries [first, end) have chosen.
  int64_t groups_seen(int64_t first_query, int64_t end) const {
    if (groups == 0 || k == 0 || end <= first_query) return 0;
    const int32_t* chosen = topk.const_data_ptr<int32_t>();
    const int64_t last = *std::max_element(chosen + first_query * k, chosen + end * k);
    return std::clamp<int64_t>(last + 1, 0, groups);
  }

  // Rows of the window, then of the chosen groups, from these bases.
  template <class Row>
  int64_t rows_of(int64_t t, Row* near, int64_t first_key, Row* far, Row** rows) const {
    int64_t count = 0;
    for (int64_t key = oldest_key(t), last = own_key(t); key <= last; ++key) rows[count++] = near + (key - first_key) * d;
    if (groups == 0) return count;
    const int32_t* chosen = topk.const_data_ptr<int32_t>() + t * k;
    for (int64_t i = 0; i < k; ++i) {
      if (chosen[i] < 0) continue;
      HP_CHECK(chosen[i] < groups, "group {} of {}", chosen[i], groups);
      rows[count++] = far + chosen[i] * d;
    }
    return count;
  }
  Query<E> query(int64_t t, int64_t first_of_block, std::vector<const E*>& keys) const {
    const int64_t count = rows_of(t, data<E>(window_kv), 0, data<E>(compressed_kv), keys.data());
    return {heads,
            d,
            data<E>(q) + t * heads * d,
            keys.data(),
            count,
            sink.const_data_ptr<T>(),
            own_key(t) - oldest_key(t) + 1,
            oldest_key(t) - first_of_block,
            rounds};
  }

  // Calls body(t, first window key of its block) for the queries [begin, end); after each block end(its first window key).
  template <class Body, class End>
  void by_blocks(Kernel& attention, int64_t begin, int64_t end, const Body& body, const End& end_block) const {
    for (int64_t t = begin; t < end;) {
      const int64_t first = oldest_key(t), most = std::min(end, t + attention.block_queries());
      int64_t next = t, last = first;
      while (next < most && oldest_key(next) >= first && own_key(next) - first < window + attention.block_queries() - 1)
        last = std::max(last, own_key(next++));
      attention.begin_block(data<E>(window_kv) + first * d, last - first + 1);
      for (; t < next; ++t) body(t, first);
      end_block(first);
    }
  }
};

constexpr int64_t kTokens = 64;  // of a task

// Memory of a worker.
template <class P>
struct Workspace {
  typename P::Attention attention;
  std::vector<const typename P::Element*> keys;
  std::vector<typename P::T*> dkeys;
  std::vector<typename P::T> sums;

  explicit Workspace(const P& p)
      : attention(p.heads, p.d, p.window + p.k), keys(p.window + p.k), dkeys(p.window + p.k), sums(p.window + p.k) {}
};

// Rows of results as E, which a kernel makes in the math type.
template <class E, class T>
class Rows {
 public:
  Rows(const at::Tensor& to, int64_t size) : to_(writable<E>(to)), size_(size), row_(std::is_same_v<E, T> ? 0 : size) {}
  // Where row `i` is made, until `end` of it.
  T* begin(int64_t i) {
    if constexpr (std::is_same_v<E, T>) return to_ + i * size_;
    return row_.data();
  }
  void end(int64_t i) {
    if constexpr (!std::is_same_v<E, T>) narrow_row(row_.data(), size_, to_ + i * size_);
  }

 private:
  E* to_;
  int64_t size_;
  std::vector<T> row_;
};

template <class P>
at::Tensor forward_of(const P& p) {
  using E = typename P::Element;
  using T = typename P::T;
  at::Tensor out = at::empty_like(p.q);
  runtime::WorkerScratch<Workspace<P>> scratch;
  runtime::run_blocks("attention", p.tokens, kTokens, [&](int64_t begin, int64_t end, int worker) {
    Workspace<P>& own = scratch.of(worker, p);
    Rows<E, T> rows(out, p.heads * p.d);
    p.by_blocks(
        own.attention, begin, end,
        [&](int64_t t, int64_t first) {
          own.attention.forward(p.query(t, first, own.keys), rows.begin(t));
          rows.end(t);
        },
        [](int64_t) {});
  });
  return out;
}

// Sums for rows first_row .. of a whole.
struct Share {
  int64_t first_row = 0;
  at::Tensor sums = {};
};

// [rows, d]: all shares, in order.
template <class E, class T>
at::Tensor added_up(const std::vector<const Share*>& shares, int64_t rows, int64_t d, at::TensorOptions options) {
  at::Tensor whole = at::empty({rows, d}, options);
  runtime::run_blocks("attention sums", rows, kTokens, [&](int64_t begin, int64_t end, int) {
    std::vector<const T*> own;
    for (int64_t row = begin; row < end; ++row) {
      own.clear();
      for (const Share* share : shares) {
        const int64_t at = row - share->first_row;
        if (at >= 0 && at < share->sums.size(0)) own.push_back(share->sums.const_data_ptr<T>() + at * d);
      }
      sum_rows(own.data(), static_cast<int64_t>(own.size()), d, writable<E>(whole) + row * d);
    }
  });
  return whole;
}

struct Part {
  int64_t first, end;                  // queries
  Share window = {}, compressed = {};  // of the keys that any of them sees
  at::Tensor dsink = {};
};

template <class P>
variable_list backward_of(const P& p, const at::Tensor& gradient_of_out) {
  using E = typename P::Element;
  using T = typename P::T;
  const at::Tensor gradient = P::elements(gradient_of_out);
  const auto options = p.math();
  const int64_t count = gradient_parts(p.tokens, p.groups, p.d, sizeof(T));
  std::vector<Part> parts;
  for (int64_t i = 0; i < count; ++i) {
    parts.push_back({p.tokens * i / count, p.tokens * (i + 1) / count});
  }
  at::Tensor dq = at::empty_like(p.q);
  const E* g = data<E>(gradient);
  runtime::WorkerScratch<Workspace<P>> scratch;
  // The last parts first: they see the most groups.
  runtime::run_independent("attention backward", count, [&](int64_t task, int worker) {
    Part& part = parts[count - 1 - task];
    Workspace<P>& own = scratch.of(worker, p);
    const bool has_queries = part.end > part.first;
    part.window.first_row = has_queries ? p.oldest_key(part.first) : 0;
    const int64_t end_key = has_queries ? p.own_key(part.end - 1) + 1 : 0;
    part.window.sums = at::zeros({end_key - part.window.first_row, p.d}, options);
    part.compressed.sums = at::zeros({p.groups_seen(part.first, part.end), p.d}, options);
    part.dsink = at::zeros({p.heads}, options);
    T *dwindow = part.window.sums.mutable_data_ptr<T>(), *dcompressed = part.compressed.sums.mutable_data_ptr<T>();
    Rows<E, T> rows(dq, p.heads * p.d);
    p.by_blocks(
        own.attention, part.first, part.end,
        [&](int64_t t, int64_t first) {
          const Query<E> query = p.query(t, first, own.keys);
          p.rows_of(t, dwindow, part.window.first_row, dcompressed, own.dkeys.data());
          own.attention.backward(query, g + t * p.heads * p.d, rows.begin(t), own.dkeys.data(), part.dsink.mutable_data_ptr<T>());
          rows.end(t);
        },
        [&](int64_t first) { own.attention.end_block(dwindow + (first - part.window.first_row) * p.d); });
  });
  std::vector<const Share*> windows, compressed;
  at::Tensor dsink = at::zeros_like(p.sink);
  for (const Part& part : parts) {
    windows.push_back(&part.window), compressed.push_back(&part.compressed);
    dsink.add_(part.dsink);
  }
  return {dq, added_up<E, T>(windows, p.window_kv.size(0), p.d, p.window_kv.options()),
          added_up<E, T>(compressed, p.groups, p.d, p.compressed_kv.options()), dsink};
}

// body(Problem): BF16 in tiles or in pairs where the processor has such products, else in the math type.
template <class Body>
auto with_problem(const variable_list& given, int64_t window, const Body& body) {
  const at::Tensor& q = given[0];
  if (q.scalar_type() == at::kDouble) return body(Problem<double, TokenAttention<double>>(given, window));
  if (q.scalar_type() == at::kBFloat16 && TileAttention::takes(q.size(2)))
    return body(Problem<Bfloat16Bits, TileAttention>(given, window));
  if (takes_pairs(q.scalar_type(), q.size(2))) return body(Problem<Bfloat16Bits, PairAttention>(given, window));
  return body(Problem<float, TokenAttention<float>>(given, window));
}

struct FusedAttention : torch::autograd::Function<FusedAttention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& window_kv,
                            const at::Tensor& compressed_kv, const at::Tensor& topk, const at::Tensor& sink,
                            const at::Tensor& row, const at::Tensor& start, int64_t window) {
    const variable_list given{q, window_kv, compressed_kv, topk, sink, row, start};
    const at::Tensor out = with_problem(given, window, [](const auto& problem) { return forward_of(problem); });
    context->save_for_backward({q, window_kv, compressed_kv, topk, sink, row, start});
    context->saved_data["window"] = window;
    return out.to(q.scalar_type());
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const int64_t window = context->saved_data["window"].toInt();
    const variable_list d = with_problem(saved, window, [&](const auto& problem) { return backward_of(problem, gradients[0]); });
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

template <class P>
at::Tensor chosen_of(const P& p, bool windowed) {
  using E = typename P::Element;
  using T = typename P::T;
  at::Tensor sums = at::zeros({p.tokens, p.k}, p.math());
  T* to = sums.mutable_data_ptr<T>();
  const int32_t* topk = p.topk.template const_data_ptr<int32_t>();
  runtime::WorkerScratch<Workspace<P>> scratch;
  runtime::run_blocks("chosen attention", p.tokens, kTokens, [&](int64_t begin, int64_t end, int worker) {
    Workspace<P>& own = scratch.of(worker, p);
    std::vector<T>& found = own.sums;
    const auto add = [&](int64_t t, int64_t first) {
      Query<E> query = p.query(t, first, own.keys);
      if (!windowed) query.keys += query.near, query.count -= query.near, query.near = 0;
      std::fill_n(found.begin(), query.count, T(0));
      own.attention.add_attention(query, found.data());
      const T* next = found.data() + query.near;
      for (int64_t i = 0; i < p.k; ++i) {
        if (p.groups > 0 && topk[t * p.k + i] >= 0) to[t * p.k + i] = *next++;
      }
    };
    p.by_blocks(own.attention, begin, end, add, [](int64_t) {});
  });
  return sums;
}

}  // namespace

at::Tensor fused_chosen_attention(const at::Tensor& q, const at::Tensor& window_kv, const at::Tensor& compressed_kv,
                                  const at::Tensor& topk, const at::Tensor& sink, const at::Tensor& row, const at::Tensor& start,
                                  int64_t window, bool windowed) {
  const variable_list given{q, window_kv, compressed_kv, topk.to(at::kInt), sink, row, start};
  return with_problem(given, window, [&](const auto& problem) { return chosen_of(problem, windowed); });
}

}  // namespace hyperparallel::kernels::attention
