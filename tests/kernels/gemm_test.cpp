#include "kernels/gemm/small.h"

#include "support/tensors.h"

namespace hyperparallel::kernels::gemm {

using namespace hyperparallel::test;

template <class T>
MatrixView<const T> view(const at::Tensor& x) {
  return {x.const_data_ptr<T>(), x.size(0), x.size(1), x.stride(0)};
}
template <class T>
MatrixView<T> writable(at::Tensor& x) {
  return {x.mutable_data_ptr<T>(), x.size(0), x.size(1), x.stride(0)};
}

template <class T>
void expect_products(at::ScalarType type, double tolerance) {
  SmallGemm<T> gemm;
  for (const int64_t m : {0, 1, 3, 12, 13, 29}) {
    for (const int64_t n : {0, 1, 15, 32, 47, 70}) {
      for (const int64_t k : {0, 1, 7, 64}) {
        const at::Tensor wide = normal({m, k + 3}, "a").to(type), a = wide.narrow(1, 2, k), b = normal({k, n}, "b").to(type),
                         bt = b.t().contiguous(), add = normal({m, n}, "c").to(type);
        const at::Tensor product = at::matmul(a.to(at::kDouble), b.to(at::kDouble));
        for (const bool transposed : {false, true}) {
          for (const double beta : {0.0, -0.5}) {
            at::Tensor out = at::full({m, n}, NAN, type);
            gemm.run(view<T>(a), view<T>(transposed ? bt : b), transposed, T(1.5), T(beta), view<T>(add), writable<T>(out));
            const at::Tensor expected = product * 1.5 + (beta == 0 ? at::zeros_like(product) : add.to(at::kDouble) * beta);
            if (out.numel() == 0) continue;
            EXPECT_CLOSE(out, expected, tolerance) << m << " x " << n << " x " << k;
          }
        }
      }
    }
  }
}

TEST(SmallGemm, EverySizeAndTailIsTheProduct) {
  expect_products<float>(at::kFloat, 2e-6);
  expect_products<double>(at::kDouble, 1e-14);
}

TEST(SmallGemm, ASymmetricProductIsSymmetricToTheBit) {
  for (const int64_t n : {1, 5, 33, 64, 71}) {
    const at::Tensor x = normal({n, 40}, "x").to(at::kFloat);
    at::Tensor full = at::empty({n, n}), half = at::empty({n, n});
    SmallGemm<float> gemm;
    gemm.run(view<float>(x), view<float>(x), true, 1, 0, {}, writable<float>(full));
    gemm.run(view<float>(x), view<float>(x), true, 1, 0, {}, writable<float>(half), SmallGemm<float>::Shape::kSymmetric);
    EXPECT_SAME_BITS(half, half.t().contiguous());
    EXPECT_CLOSE(half, full, 1e-6);
  }
}

}  // namespace hyperparallel::kernels::gemm
