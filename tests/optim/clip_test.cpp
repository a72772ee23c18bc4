#include "optim/clip.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>

#include "golden.h"

namespace hyperparallel::optim {
namespace {

OptimizedParameter gradient_only(const std::string& name, const at::Tensor& gradient) {
  return {name, at::zeros_like(gradient), gradient};
}

TEST(Clip, GoldenNormsAndCoefficientsHold) {
  const auto tensors = golden_tensors("clip.safetensors");
  const nlohmann::json cases = golden_json("clip.json").at("cases");
  ASSERT_EQ(cases.size(), 4);
  for (const auto& [name, golden] : cases.items()) {
    std::vector<OptimizedParameter> parameters;
    for (const char* key : {"dense.a", "dense.b", "dense.scalar", "experts", "sparse.merged_values"}) {
      parameters.push_back(gradient_only(key, tensors.at(name + "/" + key).to(at::kFloat)));
    }
    const GradientNorm norm = gradient_norm(parameters);
    EXPECT_NEAR(norm.norm(), golden.at("norm"), 1e-6 * golden["norm"].get<double>()) << name;
    const double coefficient = clip_coefficient(norm.norm(), golden.at("max_norm"));
    EXPECT_NEAR(coefficient, golden.at("coefficient"), 1e-6 * golden["coefficient"].get<double>()) << name;
    for (const auto& parameter : parameters) {
      const at::Tensor expected = tensors.at(name + "/clipped." + parameter.name);
      EXPECT_LE((parameter.gradient * coefficient - expected).abs().max().item<double>(),
                2e-6 * expected.abs().max().item<double>());
    }
  }
}

TEST(Clip, NormDoesNotDependOnTheThreadCount) {
  const int threads = at::get_num_threads();
  const std::vector<OptimizedParameter> parameters = {gradient_only("a", at::sin(at::arange(200003, at::kFloat))),
                                                      gradient_only("b", at::cos(at::arange(17, at::kFloat)))};
  std::vector<double> squares;
  for (int count : {1, 2, 3}) {
    at::set_num_threads(count);
    squares.push_back(gradient_norm(parameters).squared);
  }
  at::set_num_threads(threads);
  EXPECT_EQ(squares[0], squares[1]);
  EXPECT_EQ(squares[0], squares[2]);
}

TEST(Clip, HugeFiniteGradientsAreFinite) {
  const GradientNorm norm = gradient_norm(std::vector{gradient_only("a", at::full({1000}, 3e38f))});
  EXPECT_THAT(norm.non_finite, testing::IsEmpty());
  EXPECT_NEAR(norm.norm(), 3e38 * std::sqrt(1000.0), 1e33);
}

TEST(Clip, NonFiniteGradientIsNamedWithItsPlace) {
  auto parameters = std::vector{gradient_only("good", at::ones({40000})), gradient_only("bad", at::ones({200, 200}))};
  parameters[1].gradient[150][3] = std::numeric_limits<float>::infinity();
  parameters[1].gradient[199][199] = std::numeric_limits<float>::quiet_NaN();
  const GradientNorm norm = gradient_norm(parameters);
  EXPECT_FALSE(std::isfinite(norm.norm()));
  ASSERT_THAT(norm.non_finite, testing::SizeIs(1));
  EXPECT_EQ(norm.non_finite[0].name, "bad");
  EXPECT_EQ(norm.non_finite[0].count, 2);
  EXPECT_EQ(norm.non_finite[0].first_index, 150 * 200 + 3);
}

}  // namespace
}  // namespace hyperparallel::optim
