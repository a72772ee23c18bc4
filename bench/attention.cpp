// Sparse attention, forward and backward: ours, query by query, against the reference, which gathers chosen keys by chunks and
// composes library calls. Items are queries. Shapes of golden/bench-mid and of configs/easy_vqa.yaml.
#include <benchmark/benchmark.h>
#include <torch/csrc/autograd/autograd.h>

#include "kernels/attention/op.h"

namespace hyperparallel::kernels {
namespace {

struct Shape {
  int64_t tokens, heads, d, window, ratio, k;
};
constexpr Shape kMid{2048, 8, 128, 128, 2, 128}, kVqa{1024, 4, 32, 32, 2, 8}, kWide{512, 64, 128, 128, 2, 512};

struct Problem {
  explicit Problem(const Shape& s)
      : q(at::randn({s.tokens, s.heads, s.d})),
        near(at::randn({s.tokens, s.d})),
        far(at::randn({s.tokens / s.ratio, s.d})),
        sink(at::zeros({s.heads})),
        row(at::arange(s.tokens)),
        start(at::zeros({s.tokens}, at::kLong)) {
    at::Tensor scores = at::randn({s.tokens, s.tokens / s.ratio});
    scores.masked_fill_(at::arange(s.tokens / s.ratio).unsqueeze(0).ge(((row + 1) / s.ratio).unsqueeze(1)), -1e30);
    auto [values, ids] = scores.topk(s.k, 1);
    topk = ids.masked_fill(values.lt(-1e29), -1).to(at::kInt);
  }
  at::Tensor q, near, far, sink, row, start, topk;
};

void attention(benchmark::State& state, const Shape& s, bool fused, bool derive, at::ScalarType type = at::kFloat) {
  const Problem wide(s);
  Problem p = wide;
  p.q = wide.q.to(type), p.near = wide.near.to(type), p.far = wide.far.to(type);
  const AttentionShape shape{s.window, 128, fused};
  for (auto _ : state) {
    const at::AutoGradMode grad(derive);
    const auto leaf = [&](const at::Tensor& x) { return x.detach().requires_grad_(derive); };
    const at::Tensor q = leaf(p.q), near = leaf(p.near), far = leaf(p.far), sink = leaf(p.sink);
    const at::Tensor out = csa2_attention(q, near, far, p.topk, sink, p.row, p.start, shape);
    if (derive) benchmark::DoNotOptimize(torch::autograd::grad({out}, {q, near, far, sink}, {p.q}));
  }
  state.SetItemsProcessed(state.iterations() * s.tokens);
}
#define HP_BENCH(name, shape)                                                                 \
  BENCHMARK_CAPTURE(attention, name##_forward_ours, shape, true, false)->UseRealTime();       \
  BENCHMARK_CAPTURE(attention, name##_forward_reference, shape, false, false)->UseRealTime(); \
  BENCHMARK_CAPTURE(attention, name##_with_backward_ours, shape, true, true)->UseRealTime();  \
  BENCHMARK_CAPTURE(attention, name##_with_backward_reference, shape, false, true)->UseRealTime()
HP_BENCH(bench_mid, kMid);
BENCHMARK_CAPTURE(attention, bench_mid_bf16_forward_ours, kMid, true, false, at::kBFloat16)->UseRealTime();
BENCHMARK_CAPTURE(attention, bench_mid_bf16_with_backward_ours, kMid, true, true, at::kBFloat16)->UseRealTime();
HP_BENCH(easy_vqa, kVqa);
HP_BENCH(released_heads, kWide);

}  // namespace
}  // namespace hyperparallel::kernels

BENCHMARK_MAIN();
