#include "optim/adamw.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>

#include "base/error.h"
#include "golden.h"

namespace hyperparallel::optim {
namespace {

class GoldenAdamW : public testing::TestWithParam<at::ScalarType> {};

TEST_P(GoldenAdamW, FourStepsHold) {
  const auto tensors = golden_tensors("adamw.safetensors");
  const nlohmann::json cases = golden_json("adamw.json").at("cases");
  ASSERT_EQ(cases.size(), 10);
  for (const auto& [name, golden] : cases.items()) {
    auto fixture = [&](const std::string& key) { return tensors.at(name + "/" + key); };
    std::vector<OptimizedParameter> parameters = {{name, fixture("param.0").to(GetParam()), {}}};
    const std::vector<ParameterSettings> settings = {{Rule::kAdamW, 1, golden.at("weight_decay")}};
    AdamW optimizer(parameters, settings, {golden.at("betas")[0], golden.at("betas")[1], golden.at("eps")});
    for (int t = 1; t <= 4; ++t) {
      const std::string step = "." + std::to_string(t);
      const auto gradient = tensors.find(name + "/grad" + step);
      parameters[0].gradient = gradient == tensors.end() ? at::Tensor() : gradient->second.to(GetParam());
      optimizer.step(parameters, golden.at("lr")[t - 1], 1);
      const auto state = optimizer.state();
      const auto& errors = golden.at("fp32_error");
      expect_close(parameters[0].value, fixture("param" + step), errors.at("param" + step), name + " param" + step);
      expect_close(state[0].value, fixture("exp_avg" + step), errors.at("exp_avg" + step), name + " exp_avg" + step);
      expect_close(state[1].value, fixture("exp_avg_sq" + step), errors.at("exp_avg_sq" + step), name + " exp_avg_sq" + step);
      EXPECT_EQ(state[2].value.item<int64_t>(), golden.at("steps_of_tensor")[t - 1].get<int64_t>()) << name;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, GoldenAdamW, testing::Values(at::kFloat, at::kDouble),
                         [](const auto& info) { return std::string(at::toString(info.param)); });

// A matrix over several chunks and a vector, with gradients of their own.
std::vector<OptimizedParameter> some_parameters() {
  auto values = [](int64_t rows, int64_t columns, double phase) {
    return at::sin(at::arange(rows * columns, at::kFloat) * 0.37 + phase).reshape({rows, columns});
  };
  return {{"layers.0.matrix", values(301, 171, 0), values(301, 171, 1)},
          {"layers.0.gain", values(1, 77, 2).reshape({77}), values(1, 77, 3).reshape({77})},
          {"layers.0.idle", values(3, 5, 4), {}}};
}

void run_steps(std::vector<OptimizedParameter>& parameters, Optimizer& optimizer, int steps) {
  for (int step = 0; step < steps; ++step) optimizer.step(parameters, 1e-2 / (step + 1), 0.5);
}

std::unique_ptr<Optimizer> optimizer_of(const std::vector<OptimizedParameter>& parameters) {
  std::vector<ParameterSettings> settings;
  for (const OptimizedParameter& parameter : parameters)
    settings.push_back({Rule::kAdamW, 1, parameter.value.dim() > 1 ? 0.1 : 0});
  return std::make_unique<AdamW>(parameters, settings, AdamWSettings{});
}

// Moments are what FP32 moments would be after a step from the rounded ones, rounded to nearest even; the value does not feel
// the rounding of its own step.
TEST(AdamW, Bfloat16MomentsAreRoundedAsTheyAreStored) {
  auto parameters = some_parameters();
  const std::vector<ParameterSettings> settings(parameters.size(), {Rule::kAdamW, 1, 0.1});
  AdamW small(parameters, settings, {.moments = at::kBFloat16});
  for (int step = 0; step < 5; ++step) {
    auto others = parameters;
    for (auto& parameter : others) parameter.value = parameter.value.clone();
    AdamW exact(others, settings, {});
    std::vector<StateTensor> state = small.state();
    for (StateTensor& tensor : state) tensor.value = tensor.value.dim() > 0 ? tensor.value.to(at::kFloat) : tensor.value.clone();
    exact.load_state(state);
    exact.step(others, 1e-2, 0.5);
    small.step(parameters, 1e-2, 0.5);
    for (size_t i = 0; i < parameters.size(); ++i) EXPECT_TRUE(parameters[i].value.equal(others[i].value));
    const auto found = small.state(), expected = exact.state();
    for (size_t i = 0; i < found.size(); ++i) {
      if (found[i].value.dim() == 0) continue;
      EXPECT_EQ(found[i].value.scalar_type(), at::kBFloat16);
      EXPECT_TRUE(found[i].value.equal(expected[i].value.to(at::kBFloat16))) << found[i].name();
    }
  }
}

TEST(AdamW, BitsDoNotDependOnTheThreadCount) {
  const int threads = at::get_num_threads();
  std::vector<at::Tensor> results;
  for (int count : {1, 2, 3}) {
    at::set_num_threads(count);
    auto parameters = some_parameters();
    run_steps(parameters, *optimizer_of(parameters), 3);
    results.push_back(parameters[0].value);
  }
  at::set_num_threads(threads);
  EXPECT_TRUE(at::equal(results[0], results[1]));
  EXPECT_TRUE(at::equal(results[0], results[2]));
}

TEST(AdamW, BitsDoNotDependOnHowATensorIsSharded) {
  auto whole = some_parameters();
  run_steps(whole, *optimizer_of(whole), 3);
  const auto start = some_parameters()[0];
  std::vector<OptimizedParameter> shards;
  for (auto [begin, end] : {std::pair<int64_t, int64_t>{0, 100}, {100, 101}, {101, 301}}) {
    shards.push_back({"rows", start.value.slice(0, begin, end).clone(), start.gradient.slice(0, begin, end).clone()});
  }
  run_steps(shards, *optimizer_of(shards), 3);
  EXPECT_TRUE(at::equal(whole[0].value, at::cat({shards[0].value, shards[1].value, shards[2].value})));
}

TEST(AdamW, CoefficientScalesTheGradient) {
  auto clipped = some_parameters(), scaled = some_parameters();
  for (auto& parameter : scaled) {
    if (parameter.gradient.defined()) parameter.gradient.mul_(0.5);
  }
  optimizer_of(clipped)->step(clipped, 1e-2, 0.5);
  optimizer_of(scaled)->step(scaled, 1e-2, 1);
  for (size_t i = 0; i < clipped.size(); ++i) EXPECT_TRUE(at::equal(clipped[i].value, scaled[i].value));
}

TEST(AdamW, ParameterWithoutGradientIsNotTouched) {
  auto parameters = some_parameters();
  run_steps(parameters, *optimizer_of(parameters), 2);
  EXPECT_TRUE(at::equal(parameters[2].value, some_parameters()[2].value));
}

TEST(AdamW, UpdateIsSeenByVersionCounters) {
  auto parameters = some_parameters();
  const auto before = parameters[0].value._version();
  optimizer_of(parameters)->step(parameters, 1e-2, 1);
  EXPECT_GT(parameters[0].value._version(), before);
}

TEST(AdamW, LoadedStateContinuesWithTheSameBits) {
  auto straight = some_parameters();
  auto first = optimizer_of(straight);
  run_steps(straight, *first, 2);
  std::vector<StateTensor> saved;
  for (const auto& tensor : first->state()) saved.push_back({tensor.parameter, tensor.key, tensor.value.clone()});
  auto resumed = straight;
  for (auto& parameter : resumed) parameter.value = parameter.value.clone();
  auto second = optimizer_of(resumed);
  second->load_state(saved);
  run_steps(straight, *first, 3);
  run_steps(resumed, *second, 3);
  for (size_t i = 0; i < straight.size(); ++i) EXPECT_TRUE(at::equal(straight[i].value, resumed[i].value));
}

TEST(AdamW, StateThatDoesNotFitIsRefusedByName) {
  auto parameters = some_parameters();
  auto optimizer = optimizer_of(parameters);
  auto expect_refusal = [&](std::vector<StateTensor> state, const std::string& text) {
    try {
      optimizer->load_state(state);
      FAIL() << text;
    } catch (const CheckpointError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr(text));
    }
  };
  auto state = optimizer->state();
  state.push_back(state[0]);
  expect_refusal(state, "layers.0.matrix.exp_avg");
  state = optimizer->state();
  state[3].value = at::zeros({78});
  expect_refusal(state, "`layers.0.gain.exp_avg` has shape [78]");
  state = optimizer->state();
  state.pop_back();
  expect_refusal(state, "layers.0.idle.step");
}

}  // namespace
}  // namespace hyperparallel::optim
