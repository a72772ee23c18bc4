#include "optim/newton_schulz.h"

#include <ATen/Parallel.h>
#include <ATen/ops/baddbmm.h>
#include <ATen/ops/bmm.h>

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "kernels/gemm/small.h"

namespace hyperparallel::optim {

NewtonSchulzSteps deepseek_steps() {
  NewtonSchulzSteps steps(8, {3.4445, -4.7750, 2.0315});
  steps.resize(10, {2.0, -1.5, 0.5});
  return steps;
}

namespace {

// X of one matrix [rows, columns], rows <= columns, in place; `other` is as large, `square` and `polynomial` [rows, rows].
template <class T>
void iterate(T* x, T* other, T* square, T* polynomial, int64_t rows, int64_t columns, const NewtonSchulzSteps& steps,
             kernels::SmallGemm<T>& gemm) {
  using View = kernels::MatrixView<const T>;
  using Shape = typename kernels::SmallGemm<T>::Shape;
  T *from = x, *to = other;
  for (const auto& [a, b, c] : steps) {
    const View own{from, rows, columns, columns}, s{square, rows, rows, rows}, p{polynomial, rows, rows, rows};
    gemm.run(own, own, /*transposed=*/true, T(1), T(0), {}, {square, rows, rows, rows}, Shape::kSymmetric);
    gemm.run(s, s, false, static_cast<T>(c), static_cast<T>(b), s, {polynomial, rows, rows, rows}, Shape::kSymmetric);
    gemm.run(p, own, false, T(1), static_cast<T>(a), own, {to, rows, columns, columns});
    std::swap(from, to);
  }
  if (from != x) std::copy_n(from, rows * columns, x);
}

template <class T>
void iterate_all(at::Tensor& x, const NewtonSchulzSteps& steps) {
  const int64_t rows = x.size(1), columns = x.size(2);
  T* data = x.mutable_data_ptr<T>();
  at::parallel_for(0, x.size(0), 1, [&](int64_t begin, int64_t end) {
    kernels::SmallGemm<T> gemm;
    std::vector<T> other(rows * columns), square(rows * rows), polynomial(rows * rows);
    for (int64_t i = begin; i < end; ++i)
      iterate(data + i * rows * columns, other.data(), square.data(), polynomial.data(), rows, columns, steps, gemm);
  });
}

// Our products beat the library's where all of a matrix lies in the caches of a core.
bool is_small(const at::Tensor& x) {
  return x.size(1) <= 256 && x.size(1) * x.size(2) <= (1 << 17);
}

}  // namespace

at::Tensor newton_schulz(const at::Tensor& n, const NewtonSchulzSteps& steps, double eps, at::ScalarType compute) {
  HP_CHECK(n.dim() == 3, "matrices of {} dimensions", n.dim());
  const bool is_tall = n.size(1) > n.size(2);  // the polynomial commutes with transposition
  at::Tensor x = (is_tall ? n.transpose(1, 2) : n).to(compute).contiguous();
  // Scaled by the largest element, so that squares neither overflow nor vanish.
  const at::Tensor largest = x.abs().amax({1, 2}, /*keepdim=*/true);
  const at::Tensor scale = at::where(largest == 0, at::ones_like(largest), largest);
  const at::Tensor norm = (x / scale).square().sum({1, 2}, /*keepdim=*/true).sqrt() * scale;
  x = x / (norm + eps);
  if (is_small(x) && compute == at::kFloat) {
    iterate_all<float>(x, steps);
  } else if (is_small(x) && compute == at::kDouble) {
    iterate_all<double>(x, steps);
  } else {
    for (const auto& [a, b, c] : steps) {
      const at::Tensor square = at::bmm(x, x.transpose(1, 2));
      x = at::baddbmm(x, at::baddbmm(square, square, square, b, c), x, a);
    }
  }
  return (is_tall ? x.transpose(1, 2) : x).to(n.scalar_type()).contiguous();
}

}  // namespace hyperparallel::optim
