#include "kernels/gemm/small.h"
#include "kernels/gemm/tile.h"

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

// Packed either way, from rows that lie apart, with the left operand transposed from its columns.
template <class S>
void expect_tiles(double tolerance) {
  constexpr at::ScalarType kType = c10::CppTypeToScalarType<S>::value, kSum = c10::CppTypeToScalarType<Sum<S>>::value;
  if (!tile_refusal(kType).empty()) GTEST_SKIP() << tile_refusal(kType);
  for (const int64_t m : {2, 16, 34}) {
    for (const int64_t n : {1, 15, 64, 70}) {
      for (const int64_t k : {2, 16, 50}) {
        const auto apart = [&](int64_t rows, int64_t columns, const char* name) {
          return normal({rows, columns + 2}, name, kType).narrow(1, 0, columns);
        };
        const at::Tensor a = apart(k, m, "a"), b = apart(k, n, "b"), bt = apart(n, 2 * ((k + 1) / 2), "bt").narrow(1, 0, k);
        at::Tensor left = at::empty({m, k}, kType), packed = at::empty({k * n}, kType);
        transpose<S>(a.const_data_ptr<S>(), a.stride(0), k, m, left.mutable_data_ptr<S>(), k);
        EXPECT_SAME_BITS(left, a.t());
        for (const bool transposed : {false, true}) {
          const at::Tensor right = transposed ? bt.t() : b;
          if (transposed && std::is_same_v<S, at::BFloat16> && bt.stride(0) % 2 != 0) continue;
          if (transposed) {
            pack_transposed<S>(bt.const_data_ptr<S>(), bt.stride(0), k, n, packed.mutable_data_ptr<S>());
          } else {
            pack<S>(b.const_data_ptr<S>(), b.stride(0), k, n, packed.mutable_data_ptr<S>());
          }
          const at::Tensor product_of = at::matmul(left.to(at::kDouble), right.to(at::kDouble));
          for (const bool add : {false, true}) {
            at::Tensor c = at::full({m, n + 3}, add ? 1.0 : NAN, kSum);
            product<S>(m, n, k, left.const_data_ptr<S>(), k, packed.const_data_ptr<S>(), c.mutable_data_ptr<Sum<S>>(), n + 3,
                       add);
            EXPECT_CLOSE(c.narrow(1, 0, n), product_of + (add ? 1 : 0), tolerance) << m << " x " << n << " x " << k;
          }
        }
      }
    }
  }
  release();
}

TEST(Tiles, EqualTheProductInFloat) {
  expect_tiles<float>(2e-5);
}
TEST(Tiles, EqualTheProductInDouble) {
  expect_tiles<double>(1e-13);
}
TEST(Tiles, EqualTheProductInBfloat16) {
  expect_tiles<at::BFloat16>(2e-5);
}

}  // namespace hyperparallel::kernels::gemm
