// Newton-Schulz of batches of matrices as Muon has them: ours where matrices are small, against the library's batched products.
// Items are matrices.
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>
#include <benchmark/benchmark.h>

#include "optim/newton_schulz.h"

namespace hyperparallel::optim {
namespace {

void ours(benchmark::State& state) {
  const at::Tensor n = at::randn({state.range(0), state.range(1), state.range(2)});
  for (auto _ : state) benchmark::DoNotOptimize(newton_schulz(n, deepseek_steps(), 1e-20, at::kFloat));
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
void library(benchmark::State& state) {
  const at::Tensor n = at::randn({state.range(0), state.range(1), state.range(2)});
  for (auto _ : state) {
    at::Tensor x = n / n.square().sum({1, 2}, /*keepdim=*/true).sqrt();
    for (const auto& [a, b, c] : deepseek_steps()) {
      const at::Tensor square = at::bmm(x, x.transpose(1, 2));
      x = at::baddbmm(x, at::baddbmm(square, square, square, b, c), x, a);
    }
    benchmark::DoNotOptimize(x);
  }
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
void shapes(benchmark::internal::Benchmark* benchmark) {
  for (const auto& shape : {std::vector<int64_t>{108, 64, 128}, {16, 32, 64}, {24, 96, 192}, {16, 256, 512}})
    benchmark->Args(shape);
}
BENCHMARK(ours)->Apply(shapes)->UseRealTime();
BENCHMARK(library)->Apply(shapes)->UseRealTime();

}  // namespace
}  // namespace hyperparallel::optim

BENCHMARK_MAIN();
