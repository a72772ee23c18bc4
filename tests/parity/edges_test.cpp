// What other trainers got wrong at the edges of a layout: ranks without tokens, one rank with a gradient that is not finite.
#include <mutex>

#include "dist/thread_comm.h"
#include "parity/run.h"

namespace hyperparallel::parity {
namespace {

using train::Trainer;
using train::TrainerCallback;

// One element of one gradient of one rank becomes NaN in step 3.
class Poison : public TrainerCallback {
 public:
  explicit Poison(int rank) : rank_(rank) {}
  void on_gradients(Trainer& trainer, int64_t step) override {
    if (step != 3 || trainer.ranks().layout.rank != rank_) return;
    engine::ParameterStore& store = *trainer.model().parameters;
    store.gradient(store.find("lm_head.weight")).view({-1})[5] = NAN;
  }

 private:
  int rank_;
};

// Known from other trainers: one rank decided alone that a step is skipped.
TEST(NonFinite, OnOneRankIsEveryRanksDecision) {
  for (const int poisoned : {0, 1}) {
    std::vector<int64_t> skipped;
    std::mutex mutex;
    RunOptions options;
    options.callbacks = [&] {
      std::vector<std::unique_ptr<TrainerCallback>> callbacks;
      callbacks.push_back(std::make_unique<Poison>(poisoned));
      callbacks.push_back(stop_after(4));
      return callbacks;
    };
    options.end = [&](Trainer& trainer) {
      const std::lock_guard lock(mutex);
      skipped.push_back(trainer.progress().skipped_steps);
      EXPECT_EQ(trainer.progress().step, 4);
    };
    const Outcome found = run({"", 2, {"--train.non_finite=skip", "--train.max_skips=5"}, {}}, options);
    for (const auto& [name, parameter] : found.parameters) EXPECT_TRUE(parameter.isfinite().all().item<bool>()) << name;
    EXPECT_EQ(skipped, (std::vector<int64_t>{1, 1}));
  }
}

// All tokens go to three of the experts, so that some ranks have none.
class Crowd : public TrainerCallback {
 public:
  void on_train_begin(Trainer& trainer) override {
    engine::ParameterStore& store = *trainer.model().parameters;
    for (const engine::ParameterSpec& spec : store.specs()) {
      if (spec.name.find(".gate.bias") != std::string::npos) store.master(store.find(spec.name)).narrow(0, 0, 3).fill_(100);
    }
    store.masters_changed();
  }
};

// Known from other trainers: a rank without tokens crashes, or the others wait for it in backward.
TEST(Experts, RanksWithoutTokensTakePart) {
  const auto run_crowded = [](int ranks, const std::vector<std::string>& overrides) {
    RunOptions options;
    options.callbacks = [] {
      std::vector<std::unique_ptr<TrainerCallback>> callbacks;
      callbacks.push_back(std::make_unique<Crowd>());
      callbacks.push_back(stop_after(2));
      return callbacks;
    };
    return run({"", ranks, overrides, {}}, options);
  };
  const Outcome expected = run_crowded(1, {});
  for (const int ranks : {2, 4, 8}) {
    for (const char* recompute : {"none", "full"}) {
      const Outcome found = run_crowded(ranks, {"--parallel.ep=-1", fmt::format("--recompute.mode={}", recompute)});
      ASSERT_EQ(found.losses.size(), 2u);
      for (size_t i = 0; i < 2; ++i) EXPECT_LT(relative(found.losses[i], expected.losses[i]), 1e-5) << ranks << " " << recompute;
      EXPECT_LT(relative(found.norms[0], expected.norms[0]), 1e-5);
      const at::Tensor& idle = found.gradients.at("model.layers.2.ffn.experts.w1.weight");
      EXPECT_EQ(largest(idle.slice(0, 3)), 0);  // zeros, not missing
      EXPECT_GT(largest(idle.slice(0, 0, 3)), 0);
    }
  }
}

}  // namespace
}  // namespace hyperparallel::parity
