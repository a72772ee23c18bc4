#include <cmath>

#include "base/error.h"
#include "kernels/compress/op.h"
#include "kernels/norm/op.h"
#include "kernels/rope/op.h"
#include "support/tensors.h"

namespace hyperparallel::kernels {
namespace {

using namespace hyperparallel::test;

TEST(RmsNorm, EqualsAPlainLoopAtOddWidths) {
  for (int64_t width : {1, 3, 17, 64}) {
    const at::Tensor x = normal({5, width}, "x"), gain = normal({width}, "gain");
    const at::Tensor y = rms_norm(strided(x), gain, 0.25);
    for (int64_t row = 0; row < 5; ++row) {
      double sum = 0;
      for (int64_t c = 0; c < width; ++c) sum += std::pow(x[row][c].item<double>(), 2);
      for (int64_t c = 0; c < width; ++c) {
        const double expected =
            x[row][c].item<double>() / std::sqrt(sum / static_cast<double>(width) + 0.25) * gain[c].item<double>();
        EXPECT_NEAR(y[row][c].item<double>(), expected, 1e-12);
      }
    }
  }
  EXPECT_EQ(rms_norm(at::ones({0, 3}), at::ones({3}), 1e-6).size(0), 0);
}

// In every type, with rows that are one, few and many parts of the gain's gradient.
TEST(RmsNorm, ValueAndGradientsAreThoseOfTheReference) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    for (const at::IntArrayRef sizes : std::vector<at::IntArrayRef>{{0, 3}, {1, 1}, {5, 31}, {3, 70, 33}, {2111, 16}}) {
      const int64_t width = sizes.back();
      const Tensors inputs{normal(sizes, "x", type), normal({width}, "gain", type)};
      const at::Tensor cotangent = normal(sizes, "cotangent", type);
      const auto ours = [](const Tensors& x) { return rms_norm(x[0], x[1], 1e-3); };
      const auto reference = [](const Tensors& x) { return rms_norm_reference(x[0], x[1], 1e-3); };
      const double tolerance = type == at::kDouble ? 1e-13 : type == at::kFloat ? 1e-5 : 0.01;
      EXPECT_CLOSE(ours(inputs), reference(inputs), tolerance);
      const Tensors derived = gradients(ours, inputs, cotangent), expected = gradients(reference, inputs, cotangent);
      for (size_t i = 0; i < derived.size(); ++i) {
        EXPECT_EQ(derived[i].scalar_type(), type);
        EXPECT_CLOSE(derived[i], expected[i], tolerance) << at::toString(type) << ", width " << width << ", input " << i;
      }
      const Tensors again = with_threads(1, [&] { return gradients(ours, inputs, cotangent); });
      for (size_t i = 0; i < derived.size(); ++i) EXPECT_SAME_BITS(again[i], derived[i]);
    }
  }
}

TEST(RmsNorm, Bfloat16RoundsOnceBeforeTheGain) {
  const at::Tensor x = normal({7, 33}, "x", at::kBFloat16), gain = normal({33}, "gain", at::kBFloat16), wide = x.to(at::kFloat);
  const at::Tensor normed = (wide * at::rsqrt(wide.square().mean(-1, true) + 1e-20)).to(at::kBFloat16);
  EXPECT_SAME_BITS(rms_norm(x, gain, 1e-20), normed * gain);
}

TEST(RmsNorm, GradientsEqualFiniteDifferences) {
  expect_finite_differences([](const Tensors& x) { return rms_norm(x[0], x[1], 1e-3); },
                            {normal({3, 7}, "x"), normal({7}, "gain")});
}

TEST(Rope, YarnFrequenciesEqualTheReleasedModels) {
  const std::vector<double> f = yarn_frequencies(64, 160000, 16, 32, 1, 65536);
  ASSERT_EQ(f.size(), 32u);
  const auto expect = [&](int i, double value) { EXPECT_NEAR(f[i] / value, 1.0, 1e-9) << i; };
  expect(0, 1.0);
  expect(8, 0.05);
  expect(15, 0.003635538584);
  expect(16, 0.002265625);
  expect(20, 2.969777783e-4);
  expect(24, 1.953125e-5);
  expect(25, std::pow(160000, -50.0 / 64) / 16);
  expect(31, 5.680529037e-7);
}

TEST(Rope, PlainFrequenciesArePowersOfTheta) {
  const std::vector<double> f = rope_frequencies(6, 10000);
  ASSERT_EQ(f.size(), 3u);
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(f[i], std::pow(10000, -i / 3.0), 1e-15);
}

TEST(Rope, RotatesAdjacentPairsOfTheLastChannelsOnly) {
  const at::Tensor positions = integers({0, 1, 5, 12}), x = normal({4, 3, 7}, "x");
  const std::vector<double> frequencies = rope_frequencies(4, 100);
  const RopeTable table = rope_table(positions, frequencies, at::kDouble);
  for (const at::Tensor& input : {x, strided(x)}) {
    const at::Tensor y = apply_rope(input, table);
    EXPECT_SAME_BITS(y.narrow(2, 0, 3), x.narrow(2, 0, 3));
    for (int64_t t = 0; t < 4; ++t) {
      for (int64_t h = 0; h < 3; ++h) {
        for (int64_t i = 0; i < 2; ++i) {
          const double angle = positions[t].item<double>() * static_cast<float>(frequencies[i]),
                       a = x[t][h][3 + 2 * i].item<double>(), b = x[t][h][4 + 2 * i].item<double>();
          EXPECT_NEAR(y[t][h][3 + 2 * i].item<double>(), a * std::cos(angle) - b * std::sin(angle), 1e-14);
          EXPECT_NEAR(y[t][h][4 + 2 * i].item<double>(), b * std::cos(angle) + a * std::sin(angle), 1e-14);
        }
      }
    }
    EXPECT_CLOSE(apply_rope(y, table, /*inverse=*/true), x, 1e-14);
  }
  expect_finite_differences([&](const Tensors& in) { return apply_rope(in[0], table); }, {x});
  expect_finite_differences([&](const Tensors& in) { return apply_rope(in[0], table, true); }, {x});
}

TEST(Rope, BitsAreThoseOfTheReference) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    for (const int64_t channels : {18, 34, 96}) {
      const at::Tensor x = normal({61, 3, channels}, "x", type), cotangent = normal({61, 3, channels}, "cotangent", type);
      const RopeTable table =
          rope_table(at::arange(61), rope_frequencies(18, 100), type == at::kDouble ? at::kDouble : at::kFloat);
      for (const bool inverse : {false, true}) {
        const auto ours = [&](const Tensors& in) { return apply_rope(in[0], table, inverse); };
        const auto reference = [&](const Tensors& in) { return apply_rope_reference(in[0], table, inverse); };
        EXPECT_SAME_BITS(ours({strided(x)}), reference({x}));
        EXPECT_CLOSE(gradients(ours, {x}, cotangent)[0], gradients(reference, {x}, cotangent)[0],
                     type == at::kBFloat16 ? 0.01 : 1e-6);
      }
    }
  }
}

TEST(Rope, NoTokensAreFineAndTooManyChannelsAreRefused) {
  EXPECT_EQ(apply_rope(at::ones({0, 2, 6}), rope_table(integers({}), rope_frequencies(4, 100), at::kFloat)).sizes(),
            at::IntArrayRef({0, 2, 6}));
  EXPECT_THROW(apply_rope(at::ones({1, 2}), rope_table(integers({0}), rope_frequencies(4, 100), at::kFloat)), InternalError);
}

TEST(PoolGroups, EqualsAPlainLoopPerChannel) {
  const int64_t groups = 5, ratio = 3, channels = 7;
  const at::Tensor values = normal({groups, ratio, channels}, "values"),
                   gates = normal({groups, ratio, channels}, "gates", at::kDouble, 2);
  const at::Tensor pooled = pool_groups(values, strided(gates));
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t c = 0; c < channels; ++c) {
      double sum = 0, weighted = 0;
      for (int64_t t = 0; t < ratio; ++t) {
        const double e = std::exp(gates[g][t][c].item<double>());
        sum += e, weighted += e * values[g][t][c].item<double>();
      }
      EXPECT_NEAR(pooled[g][c].item<double>(), weighted / sum, 1e-14);
    }
  }
  EXPECT_EQ(pool_groups(at::ones({0, 2, 3}), at::ones({0, 2, 3})).sizes(), at::IntArrayRef({0, 3}));
  expect_finite_differences([](const Tensors& x) { return pool_groups(x[0], x[1]); }, {values, gates});
}

}  // namespace
}  // namespace hyperparallel::kernels
