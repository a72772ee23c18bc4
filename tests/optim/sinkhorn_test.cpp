#include "optim/sinkhorn.h"

#include <gmock/gmock.h>

#include <numeric>

#include "base/error.h"
#include "dist/thread_comm.h"
#include "golden.h"

namespace hyperparallel::optim {
namespace {

SinkhornSettings settings_of(const nlohmann::json& golden) {
  return {golden.at("momentum"), golden.at("steps"), golden.at("tau"), golden.at("eps"), golden.at("correction")};
}

class GoldenSinkhorn : public testing::TestWithParam<at::ScalarType> {};

TEST_P(GoldenSinkhorn, FourStepsHold) {
  const auto tensors = golden_tensors("sinkhorn.safetensors");
  for (const auto& [name, golden] : golden_json("sinkhorn.json").at("cases").items()) {
    const auto fixture = [&](const std::string& key) { return tensors.at(name + "/" + key); };
    std::vector<OptimizedParameter> parameters = {{name, fixture("param.0").to(GetParam()), {}}};
    const std::vector<ParameterSettings> settings = {{Rule::kSinkhorn, golden.at("lr_multiplier"), 0}};
    Sinkhorn optimizer(parameters, settings, settings_of(golden), {{golden.at("logical_rows"), true}}, dist::self_group());
    for (int t = 1; t <= 4; ++t) {
      const std::string step = "." + std::to_string(t);
      parameters[0].gradient = fixture("grad" + step).to(GetParam());
      const at::Tensor before = parameters[0].value.clone();
      const double rate = golden.at("lr")[t - 1].get<double>() * golden.at("lr_multiplier").get<double>();
      optimizer.step(parameters, golden.at("lr")[t - 1], 1);
      const auto& errors = golden.at("fp32_error");
      expect_close(parameters[0].value, fixture("param" + step), errors.at("param" + step), name + " param" + step);
      expect_close(optimizer.state()[0].value, fixture("momentum" + step), errors.at("momentum" + step),
                   name + " momentum" + step);
      const at::Tensor moved = (before - parameters[0].value).ne(0).any(1);
      std::vector<int64_t> still;
      for (int64_t row = 0; row < moved.size(0); ++row) {
        if (!moved[row].item<bool>()) still.push_back(row);
      }
      EXPECT_EQ(still, golden.at("masked_rows")[t - 1].get<std::vector<int64_t>>()) << name << step;
      if (GetParam() == at::kDouble) {
        const at::Tensor delta = (before - parameters[0].value) / (0.18 * rate);
        EXPECT_LE((delta - fixture("delta" + step)).abs().max().item<double>(), 1e-11) << name << " delta" << step;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, GoldenSinkhorn, testing::Values(at::kFloat, at::kDouble),
                         [](const auto& info) { return std::string(at::toString(info.param)); });

TEST(Sinkhorn, TheGoldenVectorsHold) {
  for (const auto& golden : golden_json("sinkhorn.json").at("golden_vectors")) {
    const auto rows = golden.at("N").get<std::vector<std::vector<double>>>();
    std::vector<at::Tensor> parts;
    for (const auto& row : rows) parts.push_back(at::tensor(row, at::kDouble));
    const at::Tensor n = at::stack(parts);
    // From M = 0 the first step has N = (1 - momentum) (1 + momentum) G: its scale does not matter.
    std::vector<OptimizedParameter> parameters = {{"table", at::zeros_like(n), n}};
    const std::vector<ParameterSettings> settings = {{Rule::kSinkhorn, 1, 0}};
    Sinkhorn optimizer(parameters, settings, {.momentum = 0.0}, {{n.size(0), true}}, dist::self_group());
    optimizer.step(parameters, 1 / 0.18, 1);
    for (size_t row = 0; row < rows.size(); ++row) {
      for (size_t column = 0; column < rows[row].size(); ++column) {
        EXPECT_NEAR(-parameters[0].value[static_cast<int64_t>(row)][static_cast<int64_t>(column)].item<double>(),
                    golden.at("delta")[row][column].get<double>(), 1e-12)
            << golden.at("description");
      }
    }
  }
}

TEST(SinkhornOverRanks, RowShardsMoveAsTheWholeTablesDo) {
  const auto tensors = golden_tensors("sinkhorn.safetensors");
  const nlohmann::json golden = golden_json("sinkhorn.json").at("cases").at("row-sharded");
  const auto shards = golden.at("row_shards").get<std::vector<int64_t>>();
  const auto fixture = [&](const std::string& key) { return tensors.at("row-sharded/" + key); };
  // A second table, which lies on the first rank alone, and rank 3 has what rank 0 has: sums of both tables travel together.
  const at::Tensor other = at::cos(at::arange(35, at::kDouble)).view({7, 5});
  dist::run_ranks(4, {}, [&](dist::World& world) {
    const auto group = world.make_group({.name = "stage", .members = {0, 1, 2, 3}});
    const int64_t shard = world.rank() % 3;
    const int64_t first = std::accumulate(shards.begin(), shards.begin() + shard, int64_t{0});
    const auto own = [&](const std::string& key) { return fixture(key).narrow(0, first, shards[shard]).to(at::kDouble).clone(); };
    const at::Tensor others = other.narrow(0, 0, shard == 0 ? 7 : 0).contiguous();
    std::vector<OptimizedParameter> parameters = {{"table", own("param.0"), {}}, {"other", at::zeros_like(others), others}};
    const std::vector<ParameterSettings> settings = {{Rule::kSinkhorn, golden.at("lr_multiplier"), 0}, {Rule::kSinkhorn, 1, 0}};
    const bool is_primary = world.rank() < 3;
    Sinkhorn optimizer(parameters, settings, settings_of(golden), {{golden.at("logical_rows"), is_primary}, {7, is_primary}},
                       group);
    for (int t = 1; t <= 4; ++t) {
      parameters[0].gradient = own("grad." + std::to_string(t));
      optimizer.step(parameters, golden.at("lr")[t - 1], 1);
      const double largest = fixture("param.1").abs().max().item<double>();
      EXPECT_LE((parameters[0].value - own("param." + std::to_string(t))).abs().max().item<double>(), 1e-12 * largest);
    }
    EXPECT_EQ(parameters[1].value.ne(0).any().item<bool>(), shard == 0);
  });
}

// What has no gradient anywhere, and divisions far beyond the recipe.
TEST(Sinkhorn, ZerosStayAndManyDivisionsAreFinite) {
  const auto run = [](const at::Tensor& gradient, const SinkhornSettings& settings) {
    std::vector<OptimizedParameter> parameters = {{"table", at::ones_like(gradient), gradient}};
    const std::vector<ParameterSettings> rates = {{Rule::kSinkhorn, 1, 0}};
    Sinkhorn optimizer(parameters, rates, settings, {{gradient.size(0), true}}, dist::self_group());
    for (int step = 0; step < 3; ++step) optimizer.step(parameters, 0.01, 1);
    return parameters[0].value;
  };
  const at::Tensor zeros = at::zeros({5, 4}), waves = at::sin(at::arange(20, at::kFloat)).reshape({5, 4});
  EXPECT_TRUE(run(zeros, {}).equal(at::ones({5, 4})));
  EXPECT_TRUE(run(waves, {.threshold = 1e9}).equal(at::ones({5, 4})));  // every row stands still
  at::Tensor holes = waves.clone();
  holes.select(1, 2).zero_();
  holes.select(0, 3).zero_();
  const at::Tensor moved = run(holes, {});
  EXPECT_TRUE(moved.isfinite().all().item<bool>());
  EXPECT_TRUE(moved.select(1, 2).equal(at::ones({5})));
  EXPECT_TRUE(moved.select(0, 3).equal(at::ones({4})));
  // A pattern whose factors grow without end: rows and columns cannot all have the same norm.
  at::Tensor corner = at::zeros({3, 3});
  corner.select(0, 0).fill_(1);
  corner.select(1, 0).fill_(1);
  const at::Tensor many = run(corner, {.steps = 1001});
  EXPECT_TRUE(many.isfinite().all().item<bool>());
  EXPECT_LT((run(waves, {.steps = 401}) - run(waves, {.steps = 1001})).abs().max().item<float>(), 1e-6);
}

}  // namespace
}  // namespace hyperparallel::optim
