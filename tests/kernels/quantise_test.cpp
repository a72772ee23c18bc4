#include "kernels/quantise/op.h"

#include <cmath>

#include "support/tensors.h"

namespace hyperparallel::kernels {
namespace {

using namespace hyperparallel::test;

// The rule in plain scalars, with tables of the formats' values in code order.
std::vector<double> e2m1_values() {
  return {0, 0.5, 1, 1.5, 2, 3, 4, 6};
}
std::vector<double> e4m3_values() {
  std::vector<double> values;
  for (int code = 0; code < 127; ++code) {  // 127 is NaN
    const int exponent = code >> 3, mantissa = code & 7;
    values.push_back(exponent == 0 ? mantissa * 0x1p-9 : (8 + mantissa) * std::ldexp(1.0, exponent - 10));
  }
  return values;
}
// Nearest value, the even code among equals.
double nearest(const std::vector<double>& values, double x) {
  size_t best = 0;
  for (size_t i = 1; i < values.size(); ++i) {
    const double now = std::abs(values[i] - std::abs(x)), before = std::abs(values[best] - std::abs(x));
    if (now < before || (now == before && i % 2 == 0)) best = i;
  }
  return std::copysign(values[best], x);
}
double power_of_two_at_least(double x) {
  return std::exp2(std::ceil(std::log2(x)));
}

using Rule = std::function<double(double amax)>;
at::Tensor plain(const at::Tensor& x, int64_t block, const std::vector<double>& format, const Rule& scale_of) {
  at::Tensor out = x.to(at::kFloat).clone().contiguous();
  float* data = out.mutable_data_ptr<float>();
  for (int64_t first = 0; first < out.numel(); first += block) {
    double amax = 0;
    for (int64_t i = first; i < first + block; ++i) amax = std::max<double>(amax, std::abs(data[i]));
    const double scale = scale_of(amax);
    for (int64_t i = first; i < first + block; ++i)
      data[i] = static_cast<float>(nearest(format, data[i] / static_cast<float>(scale)) * scale);
  }
  return out.to(x.scalar_type());
}
at::Tensor plain_window(const at::Tensor& x) {
  return plain(x, 32, e4m3_values(),
               [](double amax) { return power_of_two_at_least(std::max<float>(amax, 1e-4f) * (1.0f / 448.0f)); });
}
at::Tensor plain_kv(const at::Tensor& x) {
  return plain(x, 16, e2m1_values(),
               [](double amax) { return nearest(e4m3_values(), std::max<float>(amax, 6 * 0x1p-9f) / 6.0f); });
}
at::Tensor plain_index(const at::Tensor& x) {
  return plain(x, 32, e2m1_values(),
               [](double amax) { return power_of_two_at_least(std::max<float>(amax, 6 * 0x1p-126f) * (1.0f / 6.0f)); });
}

struct Quantiser {
  const char* name;
  at::Tensor (*ours)(const at::Tensor&);
  at::Tensor (*plain)(const at::Tensor&);
  int64_t block;
  double largest;  // of the format
};

class Quantise : public ::testing::TestWithParam<Quantiser> {};

TEST_P(Quantise, EqualsTheScalarRuleAtEveryScale) {
  for (double std : {1e-30, 1e-6, 0.01, 1.0, 300.0, 1e5}) {
    const at::Tensor x = normal({7, 2 * GetParam().block}, "x", at::kFloat, std);
    EXPECT_SAME_BITS(GetParam().ours(x), GetParam().plain(x)) << std;
    EXPECT_SAME_BITS(GetParam().ours(strided(x)), GetParam().plain(x)) << std;
    EXPECT_SAME_BITS(GetParam().ours(x.to(at::kBFloat16)), GetParam().plain(x.to(at::kBFloat16))) << std;
    EXPECT_SAME_BITS(GetParam().ours(x.to(at::kDouble)), GetParam().plain(x.to(at::kDouble))) << std;
  }
}

// A block with a known scale of 1 whose other elements run through every multiple of 1/8: exact ties are among them.
TEST_P(Quantise, TiesGoToTheEvenCode) {
  const int64_t block = GetParam().block, rows = 64;
  at::Tensor x = at::arange(rows * block, at::kFloat).view({rows, block}) / 8;
  x = at::remainder(x, GetParam().largest);
  x.select(1, 0).fill_(GetParam().largest);
  x.slice(1, 1, block, 2).neg_();
  EXPECT_SAME_BITS(GetParam().ours(x), GetParam().plain(x));
}

TEST_P(Quantise, AnExactPowerOfTwoTimesTheMaximumIsNotRaised) {
  for (double power : {0x1p-3, 1.0, 4.0}) {
    at::Tensor x = at::full({1, GetParam().block}, GetParam().largest * power, at::kFloat);
    EXPECT_SAME_BITS(GetParam().ours(x), x) << power;
    EXPECT_SAME_BITS(GetParam().ours(x), GetParam().plain(x)) << power;
  }
}

TEST_P(Quantise, ZerosStayAndWidthsThatAreNoMultipleComeBackUnchanged) {
  EXPECT_SAME_BITS(GetParam().ours(at::zeros({3, GetParam().block})), at::zeros({3, GetParam().block}));
  EXPECT_EQ(GetParam().ours(at::zeros({0, GetParam().block})).size(0), 0);
  const at::Tensor odd = normal({5, GetParam().block + 8}, "odd", at::kFloat);
  EXPECT_SAME_BITS(GetParam().ours(odd), odd);
}

TEST_P(Quantise, GradientsPassUnchanged) {
  const at::Tensor x = normal({3, 2 * GetParam().block}, "x", at::kFloat, 9),
                   cotangent = normal(x.sizes(), "cotangent", at::kFloat);
  ASSERT_FALSE(same_bits(GetParam().ours(x), x));
  EXPECT_SAME_BITS(gradients([](const Tensors& in) { return GetParam().ours(in[0]); }, {x}, cotangent)[0], cotangent);
}

INSTANTIATE_TEST_SUITE_P(Formats, Quantise,
                         ::testing::Values(Quantiser{"fp8_window", fp8_window, plain_window, 32, 448},
                                           Quantiser{"fp4_kv", fp4_kv, plain_kv, 16, 6},
                                           Quantiser{"fp4_index", fp4_index, plain_index, 32, 6}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace hyperparallel::kernels
