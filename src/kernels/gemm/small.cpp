#include "kernels/gemm/small.h"

#include <algorithm>
#include <type_traits>

#include "base/vectorise.h"
#include "kernels/vectors.h"

namespace hyperparallel::kernels {
namespace {

// What becomes of the products.
template <class T>
struct Result {
  T alpha, beta;
  MatrixView<const T> add;
  MatrixView<T> out;

  HP_INLINE T finished(T product, int64_t row, int64_t column) const {
    return beta == 0 ? alpha * product : alpha * product + beta * add.data[row * add.stride + column];
  }
};

// M rows of a from `row`, times a panel [k, 2 W] of `columns` columns that are there, into out from (row, column).
template <class T, int W, int M>
HP_INLINE void tile(const MatrixView<const T>& a, int64_t row, const T* panel, int64_t column, int64_t columns,
                    const Result<T>& result) {
  Vec<T, W> sum[M][2] = {};
  const T* from = a.data + row * a.stride;
  for (int64_t p = 0; p < a.columns; ++p) {
    const Vec<T, W> b0 = load<T, W>(panel + p * 2 * W), b1 = load<T, W>(panel + p * 2 * W + W);
#pragma GCC unroll 16
    for (int r = 0; r < M; ++r) {
      const T x = from[r * a.stride + p];
      sum[r][0] += b0 * x;
      sum[r][1] += b1 * x;
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < M; ++r) {
    T* to = result.out.data + (row + r) * result.out.stride + column;
    if (columns == 2 * W && result.beta == 0) {
      store<T, W>(to, sum[r][0] * result.alpha);
      store<T, W>(to + W, sum[r][1] * result.alpha);
    } else if (columns == 2 * W) {
      const T* add = result.add.data + (row + r) * result.add.stride + column;
      store<T, W>(to, sum[r][0] * result.alpha + load<T, W>(add) * result.beta);
      store<T, W>(to + W, sum[r][1] * result.alpha + load<T, W>(add + W) * result.beta);
    } else {
      T products[2 * W];
      store<T, W>(products, sum[r][0]);
      store<T, W>(products + W, sum[r][1]);
      for (int64_t c = 0; c < columns; ++c) to[c] = result.finished(products[c], row + r, column + c);
    }
  }
}

// Columns `column` .. of b, [k, 2 W], zeros behind the last.
template <class T, int W>
HP_INLINE void pack(const MatrixView<const T>& b, bool transposed, int64_t k, int64_t column, int64_t columns, T* panel) {
  if (columns < 2 * W) std::fill_n(panel, k * 2 * W, T(0));
  if (transposed) {
    for (int64_t c = 0; c < columns; ++c) {
      const T* row = b.data + (column + c) * b.stride;
      for (int64_t p = 0; p < k; ++p) panel[p * 2 * W + c] = row[p];
    }
  } else {
    for (int64_t p = 0; p < k; ++p) std::copy_n(b.data + p * b.stride + column, columns, panel + p * 2 * W);
  }
}

// M: rows of a tile, so that its sums fill the registers.
template <class T, int W, int M>
HP_INLINE void multiply(const MatrixView<const T>& a, const MatrixView<const T>& b, bool transposed, bool symmetric, T* panel,
                        const Result<T>& result) {
  const int64_t n = result.out.columns, m = a.rows;
  for (int64_t column = 0; column < n; column += 2 * W) {
    const int64_t columns = std::min<int64_t>(2 * W, n - column);
    pack<T, W>(b, transposed, a.columns, column, columns, panel);
    const int64_t end = symmetric ? std::min(m, column + columns) : m;  // what lies below is copied
    int64_t row = 0;
    for (; row + M <= end; row += M) tile<T, W, M>(a, row, panel, column, columns, result);
    for (; row + 4 <= end; row += 4) tile<T, W, 4>(a, row, panel, column, columns, result);
    for (; row < end; ++row) tile<T, W, 1>(a, row, panel, column, columns, result);
  }
  if (!symmetric) return;
  T* out = result.out.data;
  const int64_t stride = result.out.stride;
  for (int64_t i = 1; i < m; ++i)
    for (int64_t j = 0; j < i; ++j) out[i * stride + j] = out[j * stride + i];
}

}  // namespace

template <class T>
void SmallGemm<T>::run(MatrixView<const T> a, MatrixView<const T> b, bool transposed, T alpha, T beta, MatrixView<const T> add,
                       MatrixView<T> out, Shape shape) {
  constexpr int kWide = 64 / sizeof(T), kNarrow = 32 / sizeof(T);
  panel_.resize(static_cast<size_t>(a.columns) * 2 * kWide);
  const Result<T> result{alpha, beta, add, out};
  const bool symmetric = shape == Shape::kSymmetric;
  vectorise_products_by_width([&](auto is_wide) __attribute__((always_inline)) {
    if constexpr (is_wide()) {
      multiply<T, kWide, 12>(a, b, transposed, symmetric, panel_.data(), result);
    } else {
      multiply<T, kNarrow, 4>(a, b, transposed, symmetric, panel_.data(), result);
    }
  });
}

template class SmallGemm<float>;
template class SmallGemm<double>;

}  // namespace hyperparallel::kernels
