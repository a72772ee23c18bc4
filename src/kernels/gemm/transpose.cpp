#include "kernels/gemm/transpose.h"

#include <algorithm>

#include "base/vectorise.h"
#include "kernels/vectors.h"

namespace hyperparallel::kernels::gemm {
namespace {

constexpr int kSide = 16;
using Row = Vec<uint32_t, kSide>;

// Rows i and i + S exchange the halves of their blocks of 2 S words.
template <int S>
HP_INLINE void exchange(Row* rows) {
  Row low, high;
  for (uint32_t l = 0; l < kSide; ++l) {
    low[l] = l & S ? kSide + l - S : l;
    high[l] = l & S ? kSide + l : l + S;
  }
#pragma GCC unroll 16
  for (int i = 0; i < kSide; ++i) {
    if (i & S) continue;
    const Row a = rows[i], b = rows[i + S];
    rows[i] = __builtin_shuffle(a, b, low);
    rows[i + S] = __builtin_shuffle(a, b, high);
  }
}

HP_INLINE void transpose_square(const uint32_t* from, int64_t stride, uint32_t* to, int64_t to_stride) {
  Row rows[kSide];
#pragma GCC unroll 16
  for (int i = 0; i < kSide; ++i) rows[i] = load<uint32_t, kSide>(from + i * stride);
  exchange<8>(rows);
  exchange<4>(rows);
  exchange<2>(rows);
  exchange<1>(rows);
#pragma GCC unroll 16
  for (int i = 0; i < kSide; ++i) store<uint32_t, kSide>(to + i * to_stride, rows[i]);
}

}  // namespace

void transpose_words(const uint32_t* from, int64_t stride, int64_t rows, int64_t columns, uint32_t* to, int64_t to_stride) {
  vectorise([&]() __attribute__((always_inline)) {
    for (int64_t row = 0; row < rows; row += kSide) {
      for (int64_t column = 0; column < columns; column += kSide) {
        const uint32_t* corner = from + row * stride + column;
        if (row + kSide <= rows && column + kSide <= columns) {
          transpose_square(corner, stride, to + column * to_stride + row, to_stride);
          continue;
        }
        for (int64_t r = row; r < std::min(row + kSide, rows); ++r)
          for (int64_t c = column; c < std::min(column + kSide, columns); ++c) to[c * to_stride + r] = from[r * stride + c];
      }
    }
  });
}

void interleave(const uint16_t* a, const uint16_t* b, int64_t size, uint32_t* to) {
  vectorise([&]() __attribute__((always_inline)) {
    for (int64_t i = 0; i < size; ++i) to[i] = uint32_t{a[i]} | uint32_t{b[i]} << 16;
  });
}

}  // namespace hyperparallel::kernels::gemm
