#include "kernels/gemm/tile.h"

#include <ATen/native/CPUBlas.h>

#include <cstring>
#include <vector>

#include "base/error.h"
#include "kernels/gemm/small.h"
#include "kernels/gemm/transpose.h"

namespace hyperparallel::kernels::gemm {
namespace {

namespace blas = at::native::cpublas;

template <class S>
std::string probe() {
  const std::vector<S> a(32 * 32, S(1)), b(32 * 64, S(2));
  std::vector<float> c(32 * 64, 1.0f);
  try {
    blas::brgemm(32, 64, 32, 32, 64, 64, /*add_C=*/true, a.data(), b.data(), c.data());
    blas::brgemm_release();
  } catch (const c10::Error& error) {
    return std::string("libtorch has no tile products for this machine: ") + error.what_without_backtrace();
  }
  if (c[0] != 65.0f) return "libtorch's tile products are wrong on this machine";
  return "";
}

// body(first column, columns)
template <class Body>
void for_each_panel(int64_t n, const Body& body) {
  constexpr int64_t kColumns = 64;
  for (int64_t column = 0; column < n; column += kColumns) body(column, std::min(kColumns, n - column));
}

const uint32_t* words(const void* x) {
  return static_cast<const uint32_t*>(x);
}
const uint16_t* halves(const at::BFloat16* x) {
  return reinterpret_cast<const uint16_t*>(x);
}

}  // namespace

std::string tile_refusal(at::ScalarType type) {
  static const std::string single = probe<float>(), half = probe<at::BFloat16>();
  if (type == at::kFloat) return single;
  if (type == at::kBFloat16) return half;
  return type == at::kDouble ? "" : std::string("tiles of ") + at::toString(type);
}

template <class S>
void pack(const S* from, int64_t stride, int64_t k, int64_t n, S* to) {
  HP_CHECK(k % 2 == 0 || !(std::is_same_v<S, at::BFloat16>), "a BF16 operand of {} rows", k);
  for_each_panel(n, [&](int64_t column, int64_t width) {
    S* panel = to + column * k;
    if constexpr (std::is_same_v<S, at::BFloat16>) {
      for (int64_t row = 0; row < k; row += 2)
        interleave(halves(from + row * stride + column), halves(from + (row + 1) * stride + column), width,
                   reinterpret_cast<uint32_t*>(panel + row * width));
    } else {
      for (int64_t row = 0; row < k; ++row) std::memcpy(panel + row * width, from + row * stride + column, width * sizeof(S));
    }
  });
}

template <class S>
void pack_transposed(const S* from, int64_t stride, int64_t k, int64_t n, S* to) {
  for_each_panel(n, [&](int64_t column, int64_t width) {
    const S* rows = from + column * stride;
    S* panel = to + column * k;
    if constexpr (std::is_same_v<S, at::BFloat16>) {  // neighbours in a row of `from` are pairs already
      HP_CHECK(k % 2 == 0 && stride % 2 == 0, "a BF16 operand of {} rows, {} apart", k, stride);
      transpose_words(words(rows), stride / 2, width, k / 2, reinterpret_cast<uint32_t*>(panel), width);
    } else {
      transpose<S>(rows, stride, width, k, panel, width);
    }
  });
}

template <class S>
void transpose(const S* from, int64_t stride, int64_t rows, int64_t columns, S* to, int64_t to_stride) {
  if constexpr (std::is_same_v<S, float>) {
    transpose_words(words(from), stride, rows, columns, reinterpret_cast<uint32_t*>(to), to_stride);
  } else if constexpr (std::is_same_v<S, at::BFloat16>) {
    HP_CHECK(rows % 2 == 0 && to_stride % 2 == 0, "{} BF16 rows become columns, {} apart", rows, to_stride);
    constexpr int64_t kRows = 32;
    std::vector<uint32_t> pairs(kRows / 2 * columns);
    for (int64_t row = 0; row < rows; row += kRows) {
      const int64_t count = std::min(kRows, rows - row) / 2;
      for (int64_t i = 0; i < count; ++i)
        interleave(halves(from + (row + 2 * i) * stride), halves(from + (row + 2 * i + 1) * stride), columns,
                   pairs.data() + i * columns);
      transpose_words(pairs.data(), columns, count, columns, reinterpret_cast<uint32_t*>(to + row), to_stride / 2);
    }
  } else {
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t c = 0; c < columns; ++c) to[c * to_stride + r] = from[r * stride + c];
  }
}

template <class S>
void product(int64_t m, int64_t n, int64_t k, const S* a, int64_t a_stride, const S* b, Sum<S>* c, int64_t c_stride, bool add) {
  for_each_panel(n, [&](int64_t column, int64_t width) {
    const S* panel = b + column * k;
    if constexpr (std::is_same_v<S, double>) {
      const MatrixView<double> out{c + column, m, width, c_stride};
      SmallGemm<double>().run({a, m, k, a_stride}, {panel, k, width, width}, /*transposed=*/false, 1, add ? 1 : 0,
                              {c + column, m, width, c_stride}, out);
    } else {
      constexpr int64_t kDepth = std::is_same_v<S, float> ? 256 : int64_t{1} << 20;  // rows of a panel that stay in the caches
      for (int64_t first = 0; first < k; first += kDepth)
        blas::brgemm(m, width, std::min(kDepth, k - first), a_stride, width, c_stride, add || first > 0, a + first,
                     panel + first * width, c + column);
    }
  });
}

void release() {
  blas::brgemm_release();
}

#define HP_INSTANTIATE(S)                                                       \
  template void pack<S>(const S*, int64_t, int64_t, int64_t, S*);               \
  template void pack_transposed<S>(const S*, int64_t, int64_t, int64_t, S*);    \
  template void transpose<S>(const S*, int64_t, int64_t, int64_t, S*, int64_t); \
  template void product<S>(int64_t, int64_t, int64_t, const S*, int64_t, const S*, Sum<S>*, int64_t, bool);
HP_INSTANTIATE(float)
HP_INSTANTIATE(double)
HP_INSTANTIATE(at::BFloat16)
#undef HP_INSTANTIATE

}  // namespace hyperparallel::kernels::gemm
