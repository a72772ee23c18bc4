#include "train/bench_kernels.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/error.h"
#include "train/bench_model.h"
#include "train/metrics.h"

namespace hyperparallel::train {
namespace {

double seconds_of(const std::function<void()>& call) {
  const double begin = monotonic_seconds();
  call();
  return monotonic_seconds() - begin;
}

// The best of three, of 256 MiB.
double measure_copy_gbytes() {
  const at::Tensor from = at::ones({64 << 20}), to = at::empty_like(from);
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < 4; ++i) best = std::min(best, seconds_of([&] { to.copy_(from); }));
  return 2 * static_cast<double>(from.nbytes()) / best / 1e9;
}

KernelTimes time(const std::string& operation, const models::KernelBenchmark& benchmark, int repetitions,
                 const BenchKernelsResult& machine) {
  benchmark.ours();
  benchmark.library();
  std::vector<double> ours, library;
  for (int i = 0; i < repetitions; ++i)
    ours.push_back(seconds_of(benchmark.ours)), library.push_back(seconds_of(benchmark.library));
  const double products = benchmark.flops / (machine.compute_gflops * 1e9), bytes = benchmark.bytes / (machine.copy_gbytes * 1e9);
  return {operation, benchmark.shape, median_of(ours), median_of(library), std::max(products, bytes), bytes > products};
}

}  // namespace

BenchKernelsResult bench_kernels(const models::ArchitecturePtr& architecture, int64_t tokens, at::ScalarType compute,
                                 int repetitions) {
  const std::vector<models::KernelBenchmarkMaker> benchmarks = architecture->kernel_benchmarks(tokens, compute);
  if (benchmarks.empty()) throw UsageError("model_type {}: it has no kernels of its own to time", architecture->model_type());
  BenchKernelsResult result;
  result.threads = at::get_num_threads();
  result.tokens = tokens;
  result.compute_gflops = measure_peak_gflops(compute);
  result.copy_gbytes = measure_copy_gbytes();
  for (const models::KernelBenchmarkMaker& maker : benchmarks) {
    const auto available = static_cast<double>(memory_use().available_bytes);
    if (maker.memory_bytes > available) {
      result.too_large.push_back(
          fmt::format("{}: it takes about {:.0f} GB, of which {:.0f} are available: fewer --tokens, or a "
                      "smaller model (`hyperparallel crop`)",
                      maker.operation, maker.memory_bytes / 1e9, available / 1e9));
      continue;
    }
    result.kernels.push_back(time(maker.operation, maker.make(), repetitions, result));
  }
  return result;
}

nlohmann::ordered_json to_json(const BenchKernelsResult& result) {
  nlohmann::ordered_json json{{"threads", result.threads},
                              {"tokens", result.tokens},
                              {"compute_gflops", result.compute_gflops},
                              {"copy_gbytes", result.copy_gbytes},
                              {"too_large", result.too_large}};
  for (const KernelTimes& kernel : result.kernels) {
    json["kernels"].push_back({{"operation", kernel.operation},
                               {"shape", kernel.shape},
                               {"seconds.ours", kernel.ours_seconds},
                               {"seconds.library", kernel.library_seconds},
                               {"seconds.limit", kernel.limit_seconds},
                               {"limit", kernel.limited_by_memory ? "memory" : "products"}});
  }
  return json;
}

}  // namespace hyperparallel::train
