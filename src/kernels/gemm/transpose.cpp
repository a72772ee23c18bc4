#include "kernels/gemm/transpose.h"

#include <algorithm>

#include "base/vectorise.h"
#include "kernels/vectors.h"

namespace hyperparallel::kernels::gemm {
namespace {

// Rows i and i + S of a square of that side exchange the halves of their blocks of 2 S words.
template <int Side, int S>
HP_INLINE void exchange(Vec<uint32_t, Side>* rows) {
  Vec<uint32_t, Side> low, high;
  for (uint32_t l = 0; l < Side; ++l) {
    low[l] = l & S ? Side + l - S : l;
    high[l] = l & S ? Side + l : l + S;
  }
#pragma GCC unroll 16
  for (int i = 0; i < Side; ++i) {
    if (i & S) continue;
    const Vec<uint32_t, Side> a = rows[i], b = rows[i + S];
    rows[i] = __builtin_shuffle(a, b, low);
    rows[i + S] = __builtin_shuffle(a, b, high);
  }
}

template <int Side>
HP_INLINE void transpose_square(const uint32_t* from, int64_t stride, uint32_t* to, int64_t to_stride) {
  Vec<uint32_t, Side> rows[Side];
#pragma GCC unroll 16
  for (int i = 0; i < Side; ++i) rows[i] = load<uint32_t, Side>(from + i * stride);
  if constexpr (Side == 16) exchange<Side, 8>(rows);
  exchange<Side, 4>(rows);
  exchange<Side, 2>(rows);
  exchange<Side, 1>(rows);
#pragma GCC unroll 16
  for (int i = 0; i < Side; ++i) store<uint32_t, Side>(to + i * to_stride, rows[i]);
}

// By squares of a side, then by smaller ones, then word by word.
template <int Side>
HP_INLINE void transpose_by(const uint32_t* from, int64_t stride, int64_t rows, int64_t columns, uint32_t* to,
                            int64_t to_stride) {
  if constexpr (Side < 8) {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns; ++c) to[c * to_stride + r] = from[r * stride + c];
  } else {
    const int64_t whole_rows = rows / Side * Side, whole_columns = columns / Side * Side;
    for (int64_t row = 0; row < whole_rows; row += Side)
      for (int64_t column = 0; column < whole_columns; column += Side)
        transpose_square<Side>(from + row * stride + column, stride, to + column * to_stride + row, to_stride);
    if (whole_columns < columns)
      transpose_by<Side / 2>(from + whole_columns, stride, whole_rows, columns - whole_columns, to + whole_columns * to_stride,
                             to_stride);
    if (whole_rows < rows)
      transpose_by<Side / 2>(from + whole_rows * stride, stride, rows - whole_rows, columns, to + whole_rows, to_stride);
  }
}

}  // namespace

void transpose_words(const uint32_t* from, int64_t stride, int64_t rows, int64_t columns, uint32_t* to, int64_t to_stride) {
  vectorise([&]() __attribute__((always_inline)) { transpose_by<16>(from, stride, rows, columns, to, to_stride); });
}

void interleave(const uint16_t* a, const uint16_t* b, int64_t size, uint32_t* to) {
  vectorise([&]() __attribute__((always_inline)) {
    for (int64_t i = 0; i < size; ++i) to[i] = uint32_t{a[i]} | uint32_t{b[i]} << 16;
  });
}

}  // namespace hyperparallel::kernels::gemm
