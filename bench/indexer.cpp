// The indexer's choice, ours in tiles against the reference, which holds all scores of a chunk of queries. Items are queries.
// Shapes of golden/bench-mid: 8 heads of 64, 128 groups of all, and 64 blocks of 8 as the pool of later layers.
#include <benchmark/benchmark.h>

#include "base/aten.h"

#include "kernels/indexer/op.h"

namespace hyperparallel::kernels {
namespace {

enum class Kind { kChoose, kChooseWithBlocks, kFromPool };

void choose(benchmark::State& state, Kind kind, Implementation how, at::ScalarType type) {
  const int64_t tokens = state.range(0), ratio = kind == Kind::kChoose ? 2 : 1;
  at::manual_seed(1);
  const IndexQueries queries{at::randn({tokens, 8, 64}).to(type), at::randn({tokens, 8}).to(type), at::zeros({tokens}, at::kLong),
                             at::arange(1, tokens + 1).div(ratio, "floor")};
  const at::Tensor keys = at::randn({tokens / ratio, 64}).to(type);
  const CandidateOptions keep = kind == Kind::kChoose ? CandidateOptions{} : CandidateOptions{64, 8};
  at::Tensor pool;
  if (kind == Kind::kFromPool) pool = choose_groups(queries, keys, 128, keep, {}, 8 << 20).candidates;
  for (auto _ : state) benchmark::DoNotOptimize(choose_groups(queries, keys, 128, keep, pool, 8 << 20, how).topk.data_ptr());
  state.SetItemsProcessed(state.iterations() * tokens);
}

#define HP_BENCH(name, kind, type)                                                                                  \
  BENCHMARK_CAPTURE(choose, name##_tiles, kind, Implementation::kMega, type)->Arg(4096)->Arg(16384)->UseRealTime(); \
  BENCHMARK_CAPTURE(choose, name##_reference, kind, Implementation::kReference, type)->Arg(4096)->Arg(16384)->UseRealTime()
HP_BENCH(fp32, Kind::kChoose, at::kFloat);
HP_BENCH(bf16, Kind::kChoose, at::kBFloat16);
HP_BENCH(bf16_with_blocks, Kind::kChooseWithBlocks, at::kBFloat16);
HP_BENCH(bf16_from_pool, Kind::kFromPool, at::kBFloat16);

}  // namespace
}  // namespace hyperparallel::kernels

BENCHMARK_MAIN();
