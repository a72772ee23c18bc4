// Products of matrices that fit the caches, on one thread, in fused multiply-adds (base/vectorise.h, NOTE [Products]). The bits
// of a product depend on its operands alone.
#pragma once

#include <cstdint>
#include <vector>

namespace hyperparallel::kernels {

// A matrix of rows that lie `stride` elements apart.
template <class T>
struct MatrixView {
  T* data;
  int64_t rows, columns, stride;
};

// T is float or double.
template <class T>
class SmallGemm {
 public:
  enum class Shape {
    kFull,
    kSymmetric,  // the result is known to be symmetric: its lower triangle is a copy of the upper
  };
  // out = alpha * a b + beta * add. a [m, k]; b [k, n], or [n, k] where `transposed`; add and out [m, n]. `add` may be `out`;
  // with beta 0 it is not read. Otherwise nothing may overlap `out`.
  void run(MatrixView<const T> a, MatrixView<const T> b, bool transposed, T alpha, T beta, MatrixView<const T> add,
           MatrixView<T> out, Shape shape = Shape::kFull);

 private:
  std::vector<T> panel_;  // some columns of b, [k, columns]
};

}  // namespace hyperparallel::kernels
