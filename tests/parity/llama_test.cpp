// Any layout, same loss, for the second family of models: the tiny Llama recipe trained on thread ranks against one rank.
// Gradients of layouts are compared in tests/models/llama_test.cpp.
#include <gmock/gmock.h>

#include "dist/thread_comm.h"
#include "train/trainer.h"

namespace hyperparallel::train {
namespace {

struct Curve {
  std::vector<double> losses, norms;
};

class Recorder : public TrainerCallback {
 public:
  explicit Recorder(Curve& curve) : curve_(curve) {}
  void on_step_end(Trainer& trainer, StepMetrics& metrics) override {
    if (!trainer.ranks().is_first()) return;
    curve_.losses.push_back(metrics.loss);
    curve_.norms.push_back(metrics.grad_norm);
  }

 private:
  Curve& curve_;
};

Curve train_on(int ranks, const std::vector<std::string>& overrides) {
  std::vector<std::string> all{"--train.output=unused",       "--train.threads=1",          "--data.workers=0",
                               "--train.global_batch_size=8", "--train.local_batch_size=1", "--train.steps=4"};
  all.insert(all.end(), overrides.begin(), overrides.end());
  LoadOptions options;
  options.for_training = true;
  const Config config = load_config(std::filesystem::path(HP_SOURCE_DIR) / "configs/llama_tiny.yaml", all, options);
  Curve curve;
  dist::run_ranks(ranks, {}, [&](dist::World& world) {
    Trainer trainer(config, &world);
    trainer.add(std::make_unique<Recorder>(curve));
    trainer.run();
  });
  return curve;
}

TEST(LlamaParity, EveryDenseLayoutTrainsAsOneRank) {
  const Curve expected = train_on(1, {});
  ASSERT_EQ(expected.losses.size(), 4u);
  EXPECT_LT(expected.losses[3], expected.losses[0]);
  const std::pair<int, std::vector<std::string>> layouts[] = {
      {2, {}},
      {4, {"--parallel.fsdp_replicate=2", "--parallel.fsdp_shard=2", "--recompute.mode=full"}},
      {2, {"--parallel.tp=2"}},
      {4, {"--parallel.tp=2", "--parallel.sequence_parallel=true", "--parallel.reshard_after_forward=false"}},
      {3, {"--parallel.cp=3", "--parallel.cp_shard=balanced"}},
      {8,
       {"--parallel.tp=2", "--parallel.cp=2", "--parallel.sequence_parallel=true", "--recompute.mode=full",
        "--recompute.every=2"}},
  };
  for (const auto& [ranks, overrides] : layouts) {
    const std::string what = fmt::format("{} ranks {}", ranks, fmt::join(overrides, " "));
    const Curve found = train_on(ranks, overrides);
    ASSERT_EQ(found.losses.size(), 4u) << what;
    EXPECT_NEAR(found.losses[0], expected.losses[0], 1e-5 * expected.losses[0]) << what;
    EXPECT_NEAR(found.norms[0], expected.norms[0], 1e-5 * expected.norms[0]) << what;
    for (size_t step = 1; step < 4; ++step)
      EXPECT_NEAR(found.losses[step], expected.losses[step], 1e-4 * expected.losses[step]) << what;
  }
}

}  // namespace
}  // namespace hyperparallel::train
