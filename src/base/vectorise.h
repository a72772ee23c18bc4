// Plain loops compiled for several instruction sets; the widest one that the machine has runs.
//
//   vectorise([&]() __attribute__((always_inline)) { for (...) ... });
//
// NOTE [Same bits]: compile a file that uses this with -O3 -ffp-contract=off -fno-math-errno -fno-trapping-math, and give sums a
// fixed order (lanes); then every instruction set gives the same bits. Functions that the body calls must be always_inline too,
// or they stay at the baseline.
#pragma once

namespace hyperparallel {

#if defined(__x86_64__)
namespace vectorise_detail {
enum class InstructionSet { kBaseline, kAvx2, kAvx512 };
inline const InstructionSet kInstructionSet = __builtin_cpu_supports("avx512f") ? InstructionSet::kAvx512
                                              : __builtin_cpu_supports("avx2")  ? InstructionSet::kAvx2
                                                                                : InstructionSet::kBaseline;
template <class Body>
[[gnu::target("avx512f,prefer-vector-width=512")]] void run_avx512(const Body& body) {
  body();
}
template <class Body>
[[gnu::target("avx2")]] void run_avx2(const Body& body) {
  body();
}
}  // namespace vectorise_detail

template <class Body>
void vectorise(const Body& body) {
  using namespace vectorise_detail;
  if (kInstructionSet == InstructionSet::kAvx512) return run_avx512(body);
  if (kInstructionSet == InstructionSet::kAvx2) return run_avx2(body);
  body();
}
#else
template <class Body>
void vectorise(const Body& body) {
  body();
}
#endif

}  // namespace hyperparallel
