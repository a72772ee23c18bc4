// The vocabulary's cross-entropy, forward and backward: ours, which forms the logits of a chunk once and derives it at once,
// against libtorch's linear, log_softmax and nll_loss on all logits.
#include <ATen/ops/nll_loss.h>
#include <ATen/ops/randint.h>
#include <benchmark/benchmark.h>
#include <torch/csrc/autograd/autograd.h>

#include "engine/weight.h"

namespace hyperparallel::engine {
namespace {

constexpr int64_t kTokens = 2048, kWidth = 512, kWords = 16384;

struct Problem {
  at::Tensor hidden = at::randn({kTokens, kWidth}), targets = at::randint(kWords, {kTokens}, at::kLong);
  at::Tensor table = at::randn({kWords, kWidth}) * 0.02;
};

void report(benchmark::State& state) {
  state.SetItemsProcessed(state.iterations() * kTokens);
}

void ours(benchmark::State& state) {
  const Problem problem;
  ParameterSpec spec;
  spec.name = "head";
  spec.shape = {kWords, kWidth};
  ParameterStore store({spec}, at::kFloat, at::kFloat);
  store.master({0}).copy_(problem.table);
  store.gather({0});
  for (auto _ : state) {
    const at::AutoGradMode grad(true);
    const at::Tensor hidden = problem.hidden.detach().requires_grad_(), anchor = at::empty({0}).requires_grad_();
    const Weight weight{&store, {0}, anchor};
    const at::Tensor loss = linear_cross_entropy(hidden, problem.targets, weight, 1024).sum;
    benchmark::DoNotOptimize(torch::autograd::grad({loss}, {hidden, anchor}, {}, std::nullopt, false, true));
    store.take_slot({0});
  }
  report(state);
}
BENCHMARK(ours)->UseRealTime();

void libtorch(benchmark::State& state) {
  const Problem problem;
  for (auto _ : state) {
    const at::AutoGradMode grad(true);
    const at::Tensor hidden = problem.hidden.detach().requires_grad_(), table = problem.table.detach().requires_grad_();
    const at::Tensor logits = at::linear(hidden, table);
    const at::Tensor loss = at::nll_loss(at::log_softmax(logits, 1), problem.targets).mul(kTokens);
    benchmark::DoNotOptimize(torch::autograd::grad({loss}, {hidden, table}));
  }
  report(state);
}
BENCHMARK(libtorch)->UseRealTime();

}  // namespace
}  // namespace hyperparallel::engine

BENCHMARK_MAIN();
