// What the multicore runtime costs a task: plans of empty tasks, independent ones and pairs of which one waits for the other. The
// number of threads is OMP_NUM_THREADS. Run: build/release/bench_runtime
#include <benchmark/benchmark.h>

#include <string>

#include "runtime/run.h"

namespace {

using namespace hyperparallel::runtime;

void run_plan(benchmark::State& state, bool in_pairs) {
  const int tasks = static_cast<int>(state.range(0));
  Plan plan;
  const int stage = plan.add_stage("empty", TaskKind::kVector);
  for (int i = 0; i < tasks; i += 2) {
    if (in_pairs) {
      const int counter = plan.add_counter(std::to_string(i));
      plan.add_task(stage, i, {}, {counter});
      plan.add_task(stage, i + 1, {counter, 1}, {});
    } else {
      plan.add_task(stage, i, {}, {});
      plan.add_task(stage, i + 1, {}, {});
    }
  }
  plan.close();
  for (auto _ : state) run(plan, [](int, int tile, int) { benchmark::DoNotOptimize(tile); });
  state.SetItemsProcessed(state.iterations() * tasks);
  state.counters["ns_a_task"] = benchmark::Counter(static_cast<double>(state.iterations()) * tasks * 1e-9,
                                                   benchmark::Counter::kIsRate | benchmark::Counter::kInvert);
}

BENCHMARK_CAPTURE(run_plan, independent, false)->Arg(64)->Arg(2048)->Arg(65536)->UseRealTime();
BENCHMARK_CAPTURE(run_plan, pairs, true)->Arg(64)->Arg(2048)->Arg(65536)->UseRealTime();

}  // namespace

BENCHMARK_MAIN();
