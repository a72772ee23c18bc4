// parallel.plan_overrides: a parameter lies as asked, and the run is the same.
#include <gmock/gmock.h>

#include <mutex>

#include "base/error.h"
#include "dist/thread_comm.h"
#include "train/layout_plan.h"
#include "train/trainer.h"

namespace hyperparallel::plan {
namespace {

using testing::HasSubstr;

train::Config config_with(std::vector<std::string> overrides) {
  for (const char* extra : {"--train.output=/nonexistent", "--train.threads=1", "--train.steps=2", "--train.local_batch_size=1",
                            "--train.global_batch_size=4", "--validation.interval=0", "--model.cache_quantisation=false"})
    overrides.emplace_back(extra);
  return train::load_config(std::filesystem::path(HP_SOURCE_DIR) / "configs/tiny.yaml", overrides);
}

std::string overriding(const std::vector<std::pair<std::string, std::string>>& roles) {
  std::string list;
  for (const auto& [match, role] : roles)
    list += fmt::format("{}{{match: \"{}\", role: {}}}", list.empty() ? "" : ", ", match, role);
  return "--parallel.plan_overrides=[" + list + "]";
}

// What a run found: losses by step, and the owned gradients of step 1 put together.
struct Outcome : train::TrainerCallback {
  struct Found {
    std::mutex mutex;
    std::vector<double> losses, norms;
    std::map<std::string, at::Tensor> gradients;
  };
  explicit Outcome(Found& found) : found(found) {}
  void on_gradients(train::Trainer& trainer, int64_t step) override {
    if (step != 1) return;
    const std::lock_guard lock(found.mutex);
    engine::ParameterStore& store = *trainer.model().parameters;
    for (const engine::ParameterSpec& spec : store.specs()) {
      const engine::ParameterId id = store.find(spec.name);
      if (!store.gradient(id).defined()) continue;
      const at::Tensor whole = found.gradients.try_emplace(spec.name, at::zeros(spec.shape, at::kDouble)).first->second;
      engine::narrow_to(whole, store.placement(id).owned).copy_(store.gradient(id));
    }
  }
  void on_step_end(train::Trainer& trainer, train::StepMetrics& metrics) override {
    if (!trainer.ranks().is_first()) return;
    const std::lock_guard lock(found.mutex);
    found.losses.push_back(metrics.loss);
    found.norms.push_back(metrics.grad_norm);
  }
  Found& found;
};

void run(const train::Config& config, int ranks, Outcome::Found& found) {
  dist::run_ranks(ranks, {}, [&](dist::World& world) {
    train::Trainer trainer(config, &world);
    trainer.add(std::make_unique<Outcome>(found));
    trainer.run();
  });
}

const std::vector<std::pair<std::string, std::string>> kEverything = {{"model.embed.weight", "replicated"},
                                                                      {"lm_head.weight", "replicated"},
                                                                      {"*.layers.[0-4].ffn.experts.*", "replicated"},
                                                                      {"*.shared_experts.w1.weight", "column"},
                                                                      {"*.layers.3.engram.embed.weight", "replicated"}};

TEST(Override, RunsAsWithoutIt) {
  Outcome::Found one, exact;  // the rounding of one rank is the measure
  run(config_with({}), 1, one);
  run(config_with({"--train.dtype=float64"}), 1, exact);
  const std::pair<int, std::vector<std::string>> layouts[] = {
      {2, {"--parallel.tp=2"}},
      {4, {"--parallel.tp=2", "--parallel.cp=2", "--parallel.ep=4", "--parallel.sequence_parallel=true"}},
      {4, {"--parallel.tp=2", "--parallel.ep=2", "--recompute.mode=full"}}};
  for (const auto& [ranks, layout] : layouts) {
    std::vector<std::string> all = layout;
    all.push_back(overriding(kEverything));
    Outcome::Found found;
    run(config_with(all), ranks, found);
    ASSERT_EQ(found.losses.size(), one.losses.size());
    for (size_t step = 0; step < one.losses.size(); ++step) {
      EXPECT_NEAR(found.losses[step] / one.losses[step], 1, step == 0 ? 1e-5 : 1e-4) << ranks;
      EXPECT_NEAR(found.norms[step] / one.norms[step], 1, step == 0 ? 1e-5 : 1e-3) << ranks;
    }
    ASSERT_EQ(found.gradients.size(), one.gradients.size());
    for (const auto& [name, gradient] : one.gradients) {
      const at::Tensor& right = exact.gradients.at(name);
      const double rounding = (gradient - right).abs().max().item<double>(), largest = right.abs().max().item<double>();
      EXPECT_LE((found.gradients.at(name) - right).abs().max().item<double>(), std::max(10 * rounding, 3e-5 * largest))
          << name << " on " << ranks << " ranks";
    }
  }
}

const PlannedParameter& find(const Plan& plan, const std::string& name) {
  return *std::ranges::find(plan.parameters, name, &PlannedParameter::name);
}

TEST(Override, ThePlanShowsTheRoleAndWhatFollows) {
  const std::vector<std::string> layout{"--parallel.tp=2", "--parallel.ep=2"};
  std::vector<std::string> all = layout;
  all.push_back(overriding(kEverything));
  const Plan plain = train::plan_of(config_with(layout), 4), plan = train::plan_of(config_with(all), 4);
  const std::string shared = "model.layers.2.ffn.shared_experts.", experts = "model.layers.2.ffn.experts.w2.weight";
  EXPECT_EQ(find(plain, shared + "w2.weight").role, "replicated");
  EXPECT_EQ(find(plan, shared + "w2.weight").role, "row");  // follows w1
  EXPECT_EQ(find(plan, shared + "w3.weight").role, "column");
  EXPECT_EQ(find(plan, shared + "w1.weight").local_shape, (std::vector<int64_t>{10, 56}));
  EXPECT_EQ(find(plain, experts).role, "expert");
  EXPECT_EQ(find(plain, experts).local_shape[0], 4);
  EXPECT_EQ(find(plan, experts).role, "replicated");
  EXPECT_EQ(find(plan, experts).local_shape[0], 8);
  EXPECT_EQ(find(plan, "model.layers.6.ffn.experts.w2.weight").role, "expert");
  EXPECT_EQ(find(plan, "lm_head.weight").local_shape[0], 2051);
  EXPECT_EQ(find(plan, "model.layers.0.engram.embed.weight").role, "table");
  EXPECT_EQ(find(plan, "model.layers.0.attn.wo_b.weight").role, "row");
}

std::string refusal(const std::vector<std::pair<std::string, std::string>>& roles) {
  try {
    train::plan_of(config_with({"--parallel.tp=2", overriding(roles)}), 2);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "nothing was refused";
}

TEST(Override, ARoleThatCannotBeIsRefusedWithThoseThatCan) {
  EXPECT_THAT(refusal({{"model.layers.1.attn.wo_b.weight", "replicated"}}),
              HasSubstr("model.layers.1.attn.wo_b.weight cannot be `replicated`"));
  EXPECT_THAT(refusal({{"model.layers.1.attn.wo_b.weight", "replicated"}}), HasSubstr("accepted: row"));
  EXPECT_THAT(refusal({{"model.embed.weight", "column"}}), HasSubstr("accepted: vocab or replicated"));
  EXPECT_THAT(
      refusal({{"lm_head.weight", "replicated"}, {"mtp.1.markov_head.head.weight", "vocab"}}),
      HasSubstr("accepted: vocab + vocab or replicated + replicated (for lm_head.weight + mtp.1.markov_head.head.weight)"));
  const std::string torn =
      refusal({{"*.2.ffn.shared_experts.w1.weight", "column"}, {"*.2.ffn.shared_experts.w2.weight", "replicated"}});
  EXPECT_THAT(torn, HasSubstr("replicated + replicated + replicated or column + column + row"));
}

TEST(Override, AGlobWithoutAMatchIsAnErrorWithTheNearestName) {
  const std::string both = refusal({{"lm_haed.weight", "replicated"}, {"model.layers.1.attn.wq_a.weight", "column"}});
  EXPECT_THAT(both, HasSubstr("`lm_haed.weight` matches no parameter; the nearest is lm_head.weight"));
  EXPECT_THAT(both, HasSubstr("model.layers.1.attn.wq_a.weight cannot be `column`"));  // all mistakes at once
}

}  // namespace
}  // namespace hyperparallel::plan
