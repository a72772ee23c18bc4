// Two sites of mHC, forward and backward: library operations and autograd (reference), coefficients by their own kernel (fused),
// whole sites by blocks of tokens (mega). The number of threads is OMP_NUM_THREADS. Run: build/release/bench_mhc
#include <benchmark/benchmark.h>
#include <torch/csrc/autograd/autograd.h>

#include "base/aten.h"

#include "engine/memory.h"
#include "kernels/mhc/op.h"

namespace {

using namespace hyperparallel::kernels;

void run(benchmark::State& state, Implementation how, at::ScalarType type) {
  const int64_t tokens = state.range(0), n = state.range(1), d = state.range(2);
  at::manual_seed(1);
  const auto leaf = [](const at::Tensor& x) { return x.requires_grad_(true); };
  const at::Tensor streams = leaf(at::randn({tokens, n, d}).to(type)), y = leaf(at::randn({tokens, d}).to(type)),
                   post = leaf(at::randn({tokens, n})), comb = leaf(at::randn({tokens, n, n})),
                   given = leaf(at::randn({tokens, n}));
  const MixParameters parameters{leaf(at::randn({(2 + n) * n, n * d}) * 0.02),
                                 leaf(at::full({3}, 0.01)),
                                 leaf(at::randn({(2 + n) * n})),
                                 leaf(at::ones({d})),
                                 1e-6,
                                 1e-6,
                                 20};
  const at::Tensor dstreams = at::randn({tokens, n, d}).to(type), dx = at::randn({tokens, d}).to(type),
                   dn = at::randn({tokens, n}), dcomb = at::randn({tokens, n, n});
  for (auto _ : state) {
    const Boundary made = boundary(y, streams, post, comb, given, parameters, how);
    const auto& [pre, next_post, next_comb] = made.in.coefficients;
    torch::autograd::backward({made.streams, pre, next_post, next_comb, made.in.x}, {dstreams, dn, dn, dcomb, dx});
    benchmark::DoNotOptimize(streams.grad().data_ptr());
    for (const at::Tensor& x : {streams, y, post, comb, given, parameters.fn, parameters.scale, parameters.base, parameters.gain})
      x.mutable_grad().reset();
  }
  state.SetItemsProcessed(state.iterations() * tokens);
  // Of what must move: forward reads y and streams and writes streams and x; backward reads both streams, y, dstreams and dx, and
  // writes the gradients of streams and y.
  const double numbers = static_cast<double>(tokens * d) * static_cast<double>((1 + n + n + 1) + (n + n + 1 + n + 1) + (n + 1));
  state.SetBytesProcessed(static_cast<int64_t>(static_cast<double>(state.iterations()) * numbers * (type == at::kFloat ? 4 : 2)));
}

void sizes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"tokens", "streams", "width"})->Unit(benchmark::kMillisecond)->UseRealTime();
  b->Args({1024, 2, 128})->Args({4096, 4, 512})->Args({1024, 4, 4096});
}

void copy(benchmark::State& state) {
  const at::Tensor from = at::ones({64 << 20}), to = at::empty_like(from);
  for (auto _ : state) to.copy_(from);
  state.SetBytesProcessed(state.iterations() * (int64_t{512} << 20));
}

BENCHMARK_CAPTURE(run, mega_fp32, Implementation::kMega, at::kFloat)->Apply(sizes);
BENCHMARK_CAPTURE(run, fused_fp32, Implementation::kFused, at::kFloat)->Apply(sizes);
BENCHMARK_CAPTURE(run, reference_fp32, Implementation::kReference, at::kFloat)->Apply(sizes);
BENCHMARK_CAPTURE(run, mega_bf16, Implementation::kMega, at::kBFloat16)->Apply(sizes);
BENCHMARK_CAPTURE(run, fused_bf16, Implementation::kFused, at::kBFloat16)->Apply(sizes);
BENCHMARK(copy)->Unit(benchmark::kMillisecond)->UseRealTime();

}  // namespace

int main(int argc, char** argv) {
  hyperparallel::engine::count_allocations();  // blocks that serve again, as in a training step
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
}
