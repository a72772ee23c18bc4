// Five AdamW steps of tests/golden/train, and the router bias of tests/golden/losses/balance-bias.
#include <gmock/gmock.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "checkpoint/safetensors.h"
#include "engine/schedule.h"
#include "kernels/moe/op.h"
#include "optim/adamw.h"
#include "optim/clip.h"
#include "train/case_model.h"
#include "train/router_balance.h"
#include "train/update_rules.h"

namespace hyperparallel::train {
namespace {

const std::filesystem::path kGolden = std::filesystem::path(HP_SOURCE_DIR) / "tests/golden";

nlohmann::json read_json(const std::filesystem::path& path) {
  return nlohmann::json::parse(std::ifstream(path));
}

// Our parameters under the fixture's names: experts one by one.
TensorMap released(const engine::ParameterStore& store, const std::function<at::Tensor(engine::ParameterId)>& tensor_of) {
  TensorMap tensors;
  for (const engine::ParameterSpec& spec : store.specs()) {
    const at::Tensor tensor = tensor_of(store.find(spec.name));
    if (!tensor.defined()) continue;
    for (const auto& [name, slice] : released_tensors(spec, tensor)) tensors[name] = slice;
  }
  return tensors;
}

class FiveSteps : public testing::TestWithParam<at::ScalarType> {
 protected:
  const std::filesystem::path folder_ = kGolden / "train/adamw-5steps";
  const TensorMap case_ = checkpoint::read_all(folder_ / "case.safetensors");
  const nlohmann::json errors_ = read_json(folder_ / "errors.json");

  void expect_near(const std::string& name, double ours, double theirs, double limit) {
    EXPECT_LE(std::abs(ours - theirs), limit) << name << ": " << ours << " against " << theirs;
  }
  void expect_scalar(const std::string& name, int64_t step, double ours) {
    const double theirs = case_.at(name)[step].item<double>(), e = errors_.at(name).at(0), m = errors_.at(name).at(1);
    expect_near(name + " of step " + std::to_string(step), ours, theirs,
                name == "loss" ? 2e-6 * theirs : std::max(10 * e, 1e-5 * m));
  }
  void expect_first_gradients(const TensorMap& gradients) {
    int compared = 0;
    for (const auto& [name, theirs] : case_) {
      if (!name.starts_with("first_grad.")) continue;
      const double e = errors_.at(name).at(0), m = errors_.at(name).at(1);
      const at::Tensor ours = gradients.at(name.substr(11)).to(at::kDouble);
      expect_near(name, (ours - theirs.to(at::kDouble)).abs().max().item<double>(), 0, std::max(10 * e, 3e-5 * m));
      ++compared;
    }
    EXPECT_GT(compared, 50);
  }
  void expect_final(const TensorMap& parameters, bool is_double) {
    int compared = 0;
    for (const auto& [name, theirs] : case_) {
      if (!name.starts_with("final.") || !parameters.contains(name.substr(6))) continue;
      const at::Tensor d = (parameters.at(name.substr(6)).to(at::kDouble) - theirs.to(at::kDouble)).abs();
      if (is_double) {
        EXPECT_TRUE((d <= theirs.to(at::kDouble).abs() * 6e-8 + 1e-9).all().item<bool>())
            << name << " " << d.max().item<double>();
      } else {
        const double r = errors_.at(name).at(2), u = errors_.at(name).at(3);
        expect_near(name, d.square().mean().sqrt().item<double>(), 0, std::max(10 * r, 0.002 * u));
      }
      ++compared;
    }
    EXPECT_GT(compared, 50);
  }
};

TEST_P(FiveSteps, LossNormAndParametersEqualTheFixture) {
  CaseModel run = load_case_model(folder_, GetParam(), {});
  engine::ParameterStore& store = *run.parameters;
  std::vector<engine::ParameterId> trained;
  for (const engine::ParameterSpec& spec : store.specs()) {
    if (spec.use != engine::ParameterUse::kState) trained.push_back(store.find(spec.name));
  }
  const auto parameters = [&] {
    std::vector<optim::OptimizedParameter> list;
    for (engine::ParameterId id : trained) list.push_back({store.spec(id).name, store.master(id), store.gradient(id)});
    return list;
  };
  const auto settings = optim::resolve_groups(optimized_specs(store.specs()), {.weight_decay = 0.1}, {});
  const auto optimizer = std::make_unique<optim::AdamW>(parameters(), settings, optim::AdamWSettings{0.9, 0.95, 1e-8});
  engine::ScheduleOptions options;
  options.micro_batches = 2;
  const auto schedule = engine::build_schedule(run.model->program, options);

  for (int64_t step = 0; step < 5; ++step) {
    std::vector<engine::ValueMap> inputs;
    double supervised = 0, sum = 0;
    for (int micro = 0; micro < 2; ++micro) {
      const std::string prefix = "step." + std::to_string(step) + ".mb." + std::to_string(micro) + ".";
      TensorMap tensors = case_;
      const auto batch = batch_of_case(tensors, prefix, run.model->config, GetParam());
      supervised += batch.targets.ge(0).sum().item<double>();
      inputs.push_back(prepare_inputs(*run.model, batch, GetParam()));
    }
    run.executor->run(schedule, inputs, {{1 / supervised}, {1 / supervised}});
    for (const auto& losses : run.executor->losses()) sum += losses[0];
    const double norm = optim::gradient_norm(parameters()).norm(), coefficient = optim::clip_coefficient(norm, 3.1);
    expect_scalar("loss", step, sum / supervised);
    expect_scalar("grad_norm", step, norm);
    expect_scalar("clip_coefficient", step, coefficient);
    if (step == 0) expect_first_gradients(released(store, [&](engine::ParameterId id) { return store.gradient(id); }));
    optimizer->step(parameters(), case_.at("lr")[step].item<double>(), coefficient);
    store.masters_changed();
    store.clear_gradients();
  }
  expect_final(released(store, [&](engine::ParameterId id) { return store.master(id); }), GetParam() == at::kDouble);
}

INSTANTIATE_TEST_SUITE_P(Types, FiveSteps, testing::Values(at::kFloat, at::kDouble),
                         [](const auto& info) { return info.param == at::kDouble ? "Float64" : "Float32"; });

TEST(RouterBias, FollowsTheFixtureOverSixSteps) {
  const std::filesystem::path folder = kGolden / "losses/balance-bias";
  const TensorMap tensors = checkpoint::read_all(folder / "case.safetensors");
  const nlohmann::json notes = read_json(folder / "notes.json");
  const at::Tensor weight = tensors.at("weight"), hidden = tensors.at("hidden"), images = tensors.at("image_mask").to(at::kBool);
  const int64_t experts = weight.size(0), k = tensors.at("expert_ids").size(-1);
  const double rate = tensors.contains("rate") ? tensors.at("rate").item<double>() : notes.at("rate").get<double>();
  at::Tensor bias = tensors.at("bias")[0].clone(), bias_vl = tensors.at("bias_vl")[0].clone();
  for (int64_t step = 0; step < hidden.size(0); ++step) {
    at::Tensor loads = at::zeros({2, experts}, at::kLong);
    for (int64_t micro = 0; micro < hidden.size(1); ++micro) {
      const at::Tensor scores = kernels::router_scores(at::linear(hidden[step][micro], weight), 1.0), image = images[step][micro];
      const at::Tensor ids = kernels::choose_experts(scores, bias, bias_vl, image, k);
      EXPECT_TRUE(ids.equal(tensors.at("expert_ids")[step][micro].to(at::kLong)));
      for (int64_t t = 0; t < ids.size(0); ++t) {
        for (int64_t j = 0; j < k; ++j) loads[image[t].item<bool>() ? 1 : 0][ids[t][j].item<int64_t>()] += 1;
      }
    }
    EXPECT_TRUE(loads.equal(tensors.at("loads")[step])) << "step " << step;
    update_router_bias(bias, bias_vl, loads, rate);
    EXPECT_LE((bias - tensors.at("bias")[step + 1]).abs().max().item<double>(), 1e-6) << "step " << step;
    EXPECT_LE((bias_vl - tensors.at("bias_vl")[step + 1]).abs().max().item<double>(), 1e-6) << "step " << step;
  }
}

}  // namespace
}  // namespace hyperparallel::train
