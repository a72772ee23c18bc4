// Plain loops compiled for several instruction sets; the widest one that the machine has runs.
//
//   vectorise([&]() __attribute__((always_inline)) { for (...) ... });
//
// NOTE [Same bits]: compile a file that uses this with -O3 -ffp-contract=off -fno-math-errno -fno-trapping-math, and give sums a
// fixed order (lanes); then every instruction set gives the same bits. Functions that the body calls must be always_inline too,
// or they stay at the baseline.
#pragma once

#include <type_traits>

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

// NOTE [Products]: the same with fused multiply-add, for loops that multiply matrices; compile the file with -ffp-contract=fast.
// Bits are the same in every run on a machine, and differ between instruction sets.
namespace vectorise_detail {
inline const bool kHasFma = __builtin_cpu_supports("fma");
inline const bool kHasWideFma = kHasFma && kInstructionSet == InstructionSet::kAvx512 && __builtin_cpu_supports("avx512vl");
template <class Body>
[[gnu::target("avx512f,avx512vl,avx512dq,avx2,fma,prefer-vector-width=512")]] void run_avx512_fma(const Body& body) {
  body();
}
template <class Body>
[[gnu::target("avx2,fma")]] void run_avx2_fma(const Body& body) {
  body();
}
}  // namespace vectorise_detail

template <class Body>
void vectorise_products(const Body& body) {
  using namespace vectorise_detail;
  if (kHasWideFma) return run_avx512_fma(body);
  if (kHasFma && kInstructionSet != InstructionSet::kBaseline) return run_avx2_fma(body);
  body();
}
// Likewise; body(std::true_type) where vectors of 64 bytes are native and there are 32 of them, else body(std::false_type).
template <class Body>
void vectorise_products_by_width(const Body& body) {
  using namespace vectorise_detail;
  if (kHasWideFma) return run_avx512_fma([&]() __attribute__((always_inline)) { body(std::true_type()); });
  vectorise_products([&]() __attribute__((always_inline)) { body(std::false_type()); });
}
#else
template <class Body>
void vectorise(const Body& body) {
  body();
}
template <class Body>
void vectorise_products(const Body& body) {
  body();
}
template <class Body>
void vectorise_products_by_width(const Body& body) {
  body(std::false_type());
}
#endif

}  // namespace hyperparallel
