#include "kernels/rows/op.h"

#include "base/error.h"
#include "support/tensors.h"

namespace hyperparallel::kernels {
namespace {

using namespace hyperparallel::test;

struct Size {
  int64_t rows, width, count;
};

class ScatterAddRows : public ::testing::TestWithParam<Size> {};

// Ids with repeats and a negative one in every fifth place.
at::Tensor some_ids(int64_t count, int64_t rows) {
  at::Tensor ids = at::empty({count}, at::kLong);
  for (int64_t i = 0; i < count; ++i) ids[i] = i % 5 == 3 ? -1 : (i * i + 3) % rows;
  return ids;
}

TEST_P(ScatterAddRows, EqualsTheReferenceForEveryTypeOfRows) {
  const auto [rows, width, count] = GetParam();
  const at::Tensor ids = some_ids(count, rows);
  for (at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    const at::Tensor source = normal({count, width}, "rows", type);
    const at::ScalarType sum = type == at::kDouble ? at::kDouble : at::kFloat;
    at::Tensor ours = normal({rows, width}, "target", sum), theirs = ours.clone();
    scatter_add_rows(ours, ids, source);
    reference::scatter_add_rows(theirs, ids, source);
    EXPECT_CLOSE(ours, theirs, type == at::kDouble ? 1e-14 : 1e-6);
    at::Tensor again = normal({rows, width}, "target", sum);
    if (count > 0) scatter_add_rows(again, strided(ids.unsqueeze(0)).squeeze(0), strided(source));
    EXPECT_SAME_BITS(again, ours);
  }
}

TEST_P(ScatterAddRows, BitsDoNotDependOnTheThreadCount) {
  const auto [rows, width, count] = GetParam();
  const auto run = [&, rows = rows, width = width, count = count] {
    at::Tensor target = at::zeros({rows, width}, at::kFloat);
    scatter_add_rows(target, some_ids(count, rows), normal({count, width}, "rows", at::kFloat));
    return target;
  };
  EXPECT_SAME_BITS(with_threads(1, run), with_threads(2, run));
}

INSTANTIATE_TEST_SUITE_P(Sizes, ScatterAddRows,
                         ::testing::Values(Size{1, 1, 0}, Size{1, 1, 1}, Size{3, 0, 4}, Size{7, 5, 13}, Size{2, 131, 1009},
                                           Size{64, 67, 257}),
                         [](const auto& info) { return "case" + std::to_string(info.index); });

TEST(ScatterAddRowsErrors, AnIdOutOfRangeAndDifferentWidthsAreRefused) {
  at::Tensor target = at::zeros({3, 2});
  EXPECT_THROW(scatter_add_rows(target, integers({3}), at::ones({1, 2})), InternalError);
  EXPECT_THROW(scatter_add_rows(target, integers({0}), at::ones({1, 3})), InternalError);
  EXPECT_THROW(scatter_add_rows(target, integers({0, 1}), at::ones({1, 2})), InternalError);
  at::Tensor transposed = at::zeros({2, 3}).t();
  EXPECT_THROW(scatter_add_rows(transposed, integers({0}), at::ones({1, 2})), InternalError);
}

TEST(GatherRows, NegativeIdsGiveZerosAndNoGradient) {
  const at::Tensor source = normal({5, 3}, "source"), ids = integers({4, -1, 0, 4, 4});
  const at::Tensor rows = gather_rows(source, ids);
  EXPECT_SAME_BITS(rows[0], source[4]);
  EXPECT_SAME_BITS(rows[1], at::zeros({3}, at::kDouble));
  const at::Tensor cotangent = normal({5, 3}, "cotangent");
  const at::Tensor gradient = gradients([&](const Tensors& x) { return gather_rows(x[0], ids); }, {source}, cotangent)[0];
  EXPECT_SAME_BITS(gradient[0], cotangent[2]);
  EXPECT_SAME_BITS(gradient[1], at::zeros({3}, at::kDouble));
  EXPECT_CLOSE(gradient[4], cotangent[0] + cotangent[3] + cotangent[4], 1e-15);
  expect_finite_differences([&](const Tensors& x) { return gather_rows(x[0], ids); }, {source});
}

TEST(GatherRows, NoRowsAndNoIdsAreFine) {
  EXPECT_EQ(gather_rows(at::ones({4, 3}), at::empty({0}, at::kLong)).sizes(), at::IntArrayRef({0, 3}));
  EXPECT_SAME_BITS(gather_rows(at::ones({0, 3}), integers({-1, -1})), at::zeros({2, 3}));
  const at::Tensor gradient =
      gradients([](const Tensors& x) { return gather_rows(x[0], integers({-1})); }, {at::ones({0, 3})}, at::ones({1, 3}))[0];
  EXPECT_EQ(gradient.sizes(), at::IntArrayRef({0, 3}));
}

TEST(GatherRows, AManyTimesReadBfloat16RowSumsItsGradientInFloat) {
  // 1 + 256 times 2^-8 in BF16 would stay at 1.
  at::Tensor cotangent = at::full({257, 1}, 0x1p-8, at::kBFloat16);
  cotangent[0][0] = 1;
  const at::Tensor gradient = gradients([](const Tensors& x) { return gather_rows(x[0], at::zeros({257}, at::kLong)); },
                                        {at::ones({1, 1}, at::kBFloat16)}, cotangent)[0];
  EXPECT_EQ(gradient.item<float>(), 2.0f);
}

}  // namespace
}  // namespace hyperparallel::kernels
