// AdamW over a model's worth of tensors: ours against libtorch's fused one. Items are elements; an update moves 28 bytes for
// each.
#include <ATen/ops/_fused_adamw.h>

#include <benchmark/benchmark.h>
#include "base/aten.h"

#include "optim/adamw.h"
#include "optim/clip.h"

namespace hyperparallel::optim {
namespace {

constexpr int64_t kMatrices = 48, kRows = 1024, kColumns = 1024;

std::vector<OptimizedParameter> make_parameters() {
  std::vector<OptimizedParameter> parameters;
  for (int64_t i = 0; i < kMatrices; ++i) {
    parameters.push_back({"matrix." + std::to_string(i), at::randn({kRows, kColumns}), at::randn({kRows, kColumns})});
  }
  return parameters;
}

void report(benchmark::State& state) {
  state.SetItemsProcessed(state.iterations() * kMatrices * kRows * kColumns);
}

void ours(benchmark::State& state) {
  const auto parameters = make_parameters();
  AdamW optimizer(parameters, std::vector<ParameterSettings>(parameters.size(), {Rule::kAdamW, 1, 0.1}), {});
  for (auto _ : state) optimizer.step(parameters, 1e-3, 0.5);
  report(state);
}
BENCHMARK(ours)->UseRealTime();

// Moments in mapped files that stay in memory, and such that leave it after every step (the folder is the current one).
void in_files(benchmark::State& state, bool rests) {
  const auto parameters = make_parameters();
  StateMemory memory(".");
  AdamW optimizer(parameters, std::vector<ParameterSettings>(parameters.size(), {Rule::kAdamW, 1, 0.1}), {}, &memory);
  for (auto _ : state) {
    optimizer.step(parameters, 1e-3, 0.5);
    if (rests) memory.rest();
  }
  report(state);
}
BENCHMARK_CAPTURE(in_files, stay, false)->UseRealTime();
BENCHMARK_CAPTURE(in_files, rest, true)->UseRealTime();

void libtorch_fused(benchmark::State& state) {
  std::vector<at::Tensor> values, gradients, exp_avgs, exp_avg_sqs, steps;
  for (const auto& parameter : make_parameters()) {
    values.push_back(parameter.value);
    gradients.push_back(parameter.gradient);
    exp_avgs.push_back(at::zeros_like(parameter.value));
    exp_avg_sqs.push_back(at::zeros_like(parameter.value));
    steps.push_back(at::ones({}));
  }
  for (auto _ : state)
    at::_fused_adamw_(values, gradients, exp_avgs, exp_avg_sqs, {}, steps, 1e-3, 0.9, 0.95, 0.1, 1e-20, false, false);
  report(state);
}
BENCHMARK(libtorch_fused)->UseRealTime();

void global_norm(benchmark::State& state) {
  const auto parameters = make_parameters();
  for (auto _ : state) benchmark::DoNotOptimize(gradient_norm(parameters).squared);
  report(state);
}
BENCHMARK(global_norm)->UseRealTime();

// What the memory gives: as many bytes, half of them read and half of them written.
void copy(benchmark::State& state) {
  const at::Tensor from = at::randn({kMatrices * 7 * kRows, kColumns / 2});
  at::Tensor to = at::empty_like(from);
  for (auto _ : state) to.copy_(from);
  report(state);
}
BENCHMARK(copy)->UseRealTime();

}  // namespace
}  // namespace hyperparallel::optim

BENCHMARK_MAIN();
