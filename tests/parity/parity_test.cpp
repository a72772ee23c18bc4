// Any layout, same loss: the tiny model trained on thread ranks in many layouts against one rank.
#include <gmock/gmock.h>

#include <mutex>

#include "dist/thread_comm.h"
#include "train/trainer.h"

namespace hyperparallel::train {
namespace {

using Tensors = std::map<std::string, at::Tensor>;
constexpr int64_t kSteps = 4;

Config tiny(const std::vector<std::string>& overrides) {
  std::vector<std::string> all{"--train.output=" + (std::filesystem::temp_directory_path() / "hyperparallel-unused").string(),
                               "--train.threads=1",
                               "--validation.interval=0",
                               "--data.workers=0",
                               "--model.cache_quantisation=false",
                               "--train.global_batch_size=8",
                               "--train.local_batch_size=1",
                               "--train.steps=" + std::to_string(kSteps)};
  all.insert(all.end(), overrides.begin(), overrides.end());
  LoadOptions options;
  options.for_training = true;
  return load_config(std::filesystem::path(HP_SOURCE_DIR) / "configs/tiny.yaml", all, options);
}

// What all ranks of a run found, put together.
struct Outcome {
  std::vector<double> losses, norms;     // by step
  Tensors gradients, loads, parameters;  // of step 1; of step 1; at the end
};

class Collector : public TrainerCallback {
 public:
  Collector(Outcome& outcome, std::mutex& mutex) : outcome_(outcome), mutex_(mutex) {}
  void on_gradients(Trainer& trainer, int64_t step) override {
    if (step == 1)
      collect(trainer, outcome_.gradients, [](engine::ParameterStore& store, auto id) { return store.gradient(id); });
  }
  void on_step_end(Trainer& trainer, StepMetrics& metrics) override {
    const std::lock_guard lock(mutex_);
    if (!trainer.ranks().is_first()) return;
    outcome_.losses.push_back(metrics.loss);
    outcome_.norms.push_back(metrics.grad_norm);
    if (metrics.step == 1) outcome_.loads = trainer.router_loads();
  }
  void on_train_end(Trainer& trainer) override {
    collect(trainer, outcome_.parameters, [](engine::ParameterStore& store, auto id) { return store.master(id); });
  }

 private:
  template <class Get>
  void collect(Trainer& trainer, Tensors& into, const Get& get) {
    const std::lock_guard lock(mutex_);
    engine::ParameterStore& store = *trainer.model().parameters;
    for (const engine::ParameterSpec& spec : store.specs()) {
      const engine::ParameterId id = store.find(spec.name);
      const at::Tensor mine = get(store, id);
      if (!mine.defined()) continue;
      at::Tensor& whole = into.try_emplace(spec.name, at::full(spec.shape, NAN, mine.options())).first->second;
      at::Tensor place = whole;
      const Box& owned = store.placement(id).owned;
      for (size_t d = 0; d < owned.size.size(); ++d)
        place = place.narrow(static_cast<int64_t>(d), owned.offset[d], owned.size[d]);
      place.copy_(mine);
    }
  }

  Outcome& outcome_;
  std::mutex& mutex_;
};

Outcome run(int ranks, const std::vector<std::string>& overrides) {
  Outcome outcome;
  std::mutex mutex;
  const Config config = tiny(overrides);
  dist::run_ranks(ranks, {}, [&](dist::World& world) {
    Trainer trainer(config, &world);
    trainer.add(std::make_unique<Collector>(outcome, mutex));
    trainer.run();
  });
  return outcome;
}

const Outcome& one_rank_outcome() {
  static const Outcome outcome = run(1, {});
  return outcome;
}

// The same in double: tells the rounding error of the run in float.
const Outcome& exact_outcome() {
  static const Outcome outcome = run(1, {"--train.dtype=float64"});
  return outcome;
}

double largest(const at::Tensor& tensor) {
  return tensor.numel() == 0 ? 0 : tensor.abs().max().item<double>();
}

double relative(double a, double b) {
  return std::abs(a - b) / std::abs(b);
}

struct Case {
  std::string name;
  int ranks;
  std::vector<std::string> overrides;
};

class Parity : public testing::TestWithParam<Case> {};

TEST_P(Parity, EqualsOneRank) {
  const Outcome &expected = one_rank_outcome(), found = run(GetParam().ranks, GetParam().overrides);
  ASSERT_EQ(found.losses.size(), static_cast<size_t>(kSteps));
  EXPECT_LT(relative(found.losses[0], expected.losses[0]), 1e-5) << found.losses[0] << " " << expected.losses[0];
  EXPECT_LT(relative(found.norms[0], expected.norms[0]), 1e-5) << found.norms[0] << " " << expected.norms[0];
  for (int64_t step = 0; step < kSteps; ++step) EXPECT_LT(relative(found.losses[step], expected.losses[step]), 1e-4) << step;
  for (const auto& [name, loads] : expected.loads) EXPECT_TRUE(loads.equal(found.loads.at(name))) << name;
  ASSERT_EQ(found.gradients.size(), expected.gradients.size());
  for (const auto& [name, gradient] : expected.gradients) {
    const at::Tensor &exact = exact_outcome().gradients.at(name), own = gradient.to(at::kDouble);
    const double scale = largest(exact), rounding = largest(own - exact);
    const double error = largest(found.gradients.at(name).to(at::kDouble) - exact);
    EXPECT_LE(error, std::max(10 * rounding, 3e-5 * scale)) << name << ": rounding " << rounding << ", scale " << scale;
  }
}

std::vector<Case> cases() {
  return {
      {"Dp2", 2, {}},
      {"Dp4Replicated", 4, {"--parallel.fsdp_shard=1", "--parallel.fsdp_replicate=4"}},
      {"Hsdp", 4, {"--parallel.fsdp_shard=2", "--parallel.fsdp_replicate=2"}},
      {"Fsdp3Uneven", 2, {"--parallel.reshard_after_forward=false"}},
      {"Ep2", 2, {"--parallel.ep=2"}},
      {"Ep4", 4, {"--parallel.ep=4"}},
      {"Ep2Edp2", 4, {"--parallel.ep=2"}},
      {"Tp2", 2, {"--parallel.tp=2"}},
      {"Tp2Sp", 2, {"--parallel.tp=2", "--parallel.sequence_parallel=true"}},
      {"Cp2", 2, {"--parallel.cp=2"}},
      {"Cp2Balanced", 2, {"--parallel.cp=2", "--parallel.cp_shard=balanced"}},
      {"Cp4", 4, {"--parallel.cp=4"}},
      {"Cp4Balanced", 4, {"--parallel.cp=4", "--parallel.cp_shard=balanced"}},
      {"Tp2Cp2Ep4Sp", 4, {"--parallel.tp=2", "--parallel.cp=2", "--parallel.ep=4", "--parallel.sequence_parallel=true"}},
      {"Tp2Cp2Ep2", 4, {"--parallel.tp=2", "--parallel.cp=2", "--parallel.ep=2", "--parallel.cp_shard=balanced"}},
      {"Dp2Tp2Cp2Ep8", 8, {"--parallel.tp=2", "--parallel.cp=2", "--parallel.ep=8", "--recompute.mode=full"}},
      {"Dp2Tp2Cp2Ep4Hsdp",
       8,
       {"--parallel.tp=2", "--parallel.cp=2", "--parallel.ep=4", "--parallel.fsdp_replicate=2", "--parallel.fsdp_shard=2",
        "--parallel.sequence_parallel=true", "--recompute.mode=full", "--recompute.every=2"}},
  };
}

INSTANTIATE_TEST_SUITE_P(Layouts, Parity, testing::ValuesIn(cases()), [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace hyperparallel::train
