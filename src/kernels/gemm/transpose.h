// Transposes matrices of 32-bit words by squares of 16 in registers. For files that see no libtorch.
#pragma once

#include <cstdint>

namespace hyperparallel::kernels::gemm {

// from [rows, columns] -> to [columns, rows].
void transpose_words(const uint32_t* from, int64_t stride, int64_t rows, int64_t columns, uint32_t* to, int64_t to_stride);

// Two rows of 16-bit words as one of pairs: to[i] = (a[i], b[i]).
void interleave(const uint16_t* a, const uint16_t* b, int64_t size, uint32_t* to);

}  // namespace hyperparallel::kernels::gemm
