// Loops over single rows, compiled for the widest vectors of the machine. From, To: float, double or Bfloat16Bits
// (kernels/storage.h); sums are in FP32 (FP64).
#pragma once

#include <cstdint>

namespace hyperparallel::kernels {

// to[i] = from[i] as S.
template <class S, class T>
void narrow_row(const T* from, int64_t size, S* to);

// to = the sum of the rows that `rows` points to, one after another; zeros where there are none.
template <class To, class From>
void sum_rows(const From* const* rows, int64_t count, int64_t size, To* to);

}  // namespace hyperparallel::kernels
