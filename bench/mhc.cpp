// The mHC coefficients, forward and backward: the fused kernel against library operations and autograd. FP32; the number of
// threads is OMP_NUM_THREADS. Run: build/release/bench_mhc
#include <benchmark/benchmark.h>
#include "base/aten.h"

#include "kernels/mhc/op.h"

namespace {

using namespace hyperparallel::kernels;

void run(benchmark::State& state, decltype(mix_coefficients)* function) {
  const int64_t tokens = state.range(0), n = state.range(1), d = state.range(2);
  at::manual_seed(1);
  const auto leaf = [](const at::Tensor& x) { return x.requires_grad_(true); };
  const at::Tensor streams = leaf(at::randn({tokens, n, d})), fn = leaf(at::randn({(2 + n) * n, n * d}) * 0.02);
  const at::Tensor scale = leaf(at::full({3}, 0.01)), base = leaf(at::randn({(2 + n) * n}));
  const at::Tensor dpre = at::randn({tokens, n}), dpost = at::randn({tokens, n}), dcomb = at::randn({tokens, n, n});
  for (auto _ : state) {
    const MixCoefficients mix = function(streams, fn, scale, base, 1e-6, 1e-6, 20);
    ((mix.pre * dpre).sum() + (mix.post * dpost).sum() + (mix.comb * dcomb).sum()).backward();
    benchmark::DoNotOptimize(streams.grad().data_ptr());
  }
  state.SetItemsProcessed(state.iterations() * tokens);
}

void sizes(benchmark::internal::Benchmark* b) {
  b->ArgNames({"tokens", "streams", "width"})->Unit(benchmark::kMillisecond)->UseRealTime();
  b->Args({2048, 2, 128})->Args({2048, 4, 512})->Args({4096, 4, 1024});
}

BENCHMARK_CAPTURE(run, fused, &mix_coefficients)->Apply(sizes);
BENCHMARK_CAPTURE(run, reference, &reference::mix_coefficients)->Apply(sizes);

}  // namespace

BENCHMARK_MAIN();
