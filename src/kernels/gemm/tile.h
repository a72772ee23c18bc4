// Products of some rows with a matrix that serves many of them, on the calling thread: the tiles that larger operations are made
// of.
//
// The right operand is packed once and read often. S is float, double or at::BFloat16; sums are in FP32 (FP64).
#pragma once

#include <string>
#include <type_traits>

#include "base/aten.h"

namespace hyperparallel::kernels::gemm {

template <class S>
using Sum = std::conditional_t<std::is_same_v<S, double>, double, float>;

// Why this machine has no fast tiles of this type; empty: it has.
std::string tile_refusal(at::ScalarType type);

// A right operand [k, n] in the order in which products read it, n k numbers: panels of up to 64 columns one behind the other,
// whose rows lie beside each other, for rows of a wide matrix fall on few lines of a cache. k is even for BF16. `from` [k, n],
// rows `stride` apart.
template <class S>
void pack(const S* from, int64_t stride, int64_t k, int64_t n, S* to);
// The same of `from` [n, k].
template <class S>
void pack_transposed(const S* from, int64_t stride, int64_t k, int64_t n, S* to);

// from [rows, columns] -> to [columns, rows]; an even number of rows for BF16.
template <class S>
void transpose(const S* from, int64_t stride, int64_t rows, int64_t columns, S* to, int64_t to_stride);

// c [m, n] = a [m, k] b, or += where `add`; a's and c's rows lie so far apart, b is packed. Compiles code for each m, n, k and
// stride that is new, so few different ones should come.
template <class S>
void product(int64_t m, int64_t n, int64_t k, const S* a, int64_t a_stride, const S* b, Sum<S>* c, int64_t c_stride, bool add);

// At the end of some products on a thread: gives back what the hardware keeps for them.
void release();

}  // namespace hyperparallel::kernels::gemm
