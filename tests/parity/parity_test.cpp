// Any layout, same loss: the tiny model trained on thread ranks in many layouts against one rank.
#include <gmock/gmock.h>

#include <mutex>

#include "checkpoint/store.h"
#include "dist/thread_comm.h"
#include "support/scratch.h"
#include "train/trainer.h"
#include "train/training_state.h"

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
  std::vector<double> losses, norms;  // by step
  Tensors gradients, loads;           // of step 1
  Tensors before, parameters;         // at the start, at the end
};

class Collector : public TrainerCallback {
 public:
  Collector(Outcome& outcome, std::mutex& mutex) : outcome_(outcome), mutex_(mutex) {}
  void on_train_begin(Trainer& trainer) override {
    collect(trainer, outcome_.before, [](engine::ParameterStore& store, auto id) { return store.master(id); });
  }
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
      engine::narrow_to(whole, store.placement(id).owned).copy_(mine);
    }
  }

  Outcome& outcome_;
  std::mutex& mutex_;
};

class StopAfter : public TrainerCallback {
 public:
  explicit StopAfter(int64_t last) : last_(last) {}
  void on_step_end(Trainer& trainer, StepMetrics& metrics) override {
    if (metrics.step == last_) trainer.request_stop("test");
  }

 private:
  int64_t last_;
};

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

// What one rank finds; in double, too, which tells the rounding error of the run in float.
struct Reference {
  Outcome found, exact;
};
const Reference& reference(const std::vector<std::string>& data = {}) {
  static std::map<std::vector<std::string>, Reference> known;
  auto [place, is_new] = known.try_emplace(data);
  if (is_new) {
    place->second.found = run(1, data);
    std::vector<std::string> in_double = data;
    in_double.push_back("--train.dtype=float64");
    place->second.exact = run(1, in_double);
  }
  return place->second;
}

double largest(const at::Tensor& tensor) {
  return tensor.numel() == 0 ? 0 : tensor.abs().max().item<double>();
}

double rms(const at::Tensor& tensor) {
  return tensor.numel() == 0 ? 0 : tensor.to(at::kDouble).square().mean().sqrt().item<double>();
}

// The rule of golden/train: the root mean square of the difference is at most 10 times that of a run in float against one in
// double, or 0.2 % of the update. (Elements with gradients near zero make single ones meaningless: AdamW divides by their size.)
void expect_parameters(const Tensors& found, const Reference& expected) {
  ASSERT_EQ(found.size(), expected.found.parameters.size());
  for (const auto& [name, exact] : expected.exact.parameters) {
    const double rounding = rms(expected.found.parameters.at(name) - exact), update = rms(exact - expected.exact.before.at(name));
    EXPECT_LE(rms(found.at(name) - exact), std::max(10 * rounding, 0.002 * update)) << name << ": rounding " << rounding;
  }
}

double relative(double a, double b) {
  return std::abs(a - b) / std::abs(b);
}

struct Case {
  std::string name;
  int ranks;
  std::vector<std::string> overrides;
  std::vector<std::string> data = {};  // overrides that the one rank has, too
};

void PrintTo(const Case& layout, std::ostream* out) {
  *out << layout.ranks << " ranks";
  for (const std::string& override : layout.overrides) *out << " " << override;
}

class Parity : public testing::TestWithParam<Case> {};

TEST_P(Parity, EqualsOneRank) {
  const Reference& expect = reference(GetParam().data);
  const Outcome& expected = expect.found;
  std::vector<std::string> overrides = GetParam().data;
  overrides.insert(overrides.end(), GetParam().overrides.begin(), GetParam().overrides.end());
  const Outcome found = run(GetParam().ranks, overrides);
  ASSERT_EQ(found.losses.size(), expected.losses.size());
  EXPECT_LT(relative(found.losses[0], expected.losses[0]), 1e-5) << found.losses[0] << " " << expected.losses[0];
  EXPECT_LT(relative(found.norms[0], expected.norms[0]), 1e-5) << found.norms[0] << " " << expected.norms[0];
  for (size_t step = 0; step < expected.losses.size(); ++step)
    EXPECT_LT(relative(found.losses[step], expected.losses[step]), 1e-4) << step;
  for (const auto& [name, loads] : expected.loads) EXPECT_TRUE(loads.equal(found.loads.at(name))) << name;
  ASSERT_EQ(found.gradients.size(), expected.gradients.size());
  for (const auto& [name, gradient] : expected.gradients) {
    const at::Tensor &exact = expect.exact.gradients.at(name), own = gradient.to(at::kDouble);
    const double scale = largest(exact), rounding = largest(own - exact);
    const double error = largest(found.gradients.at(name).to(at::kDouble) - exact);
    EXPECT_LE(error, std::max(10 * rounding, 3e-5 * scale)) << name << ": rounding " << rounding << ", scale " << scale;
  }
  expect_parameters(found.parameters, expect);
}

// ---- A checkpoint of one layout continues on another ----

struct Reshard {
  Case from, to;
};

void PrintTo(const Reshard& reshard, std::ostream* out) {
  PrintTo(reshard.from, out);
  *out << ", then ";
  PrintTo(reshard.to, out);
}

class Resharding : public testing::TestWithParam<Reshard> {};

// Trains from step `begin` to `end`, saving behind the last step.
Outcome train_part(const Case& layout, const std::filesystem::path& folder, int64_t begin, int64_t end) {
  Outcome outcome;
  std::mutex mutex;
  const Config config = tiny(layout.overrides);
  dist::run_ranks(layout.ranks, {}, [&](dist::World& world) {
    Trainer trainer(config, &world);
    const auto saving = trainer.ranks().checkpoint_group();
    checkpoint::CheckpointStore store(
        folder, {.rank = world.rank(), .world = world.size(), .barrier = [&] { saving->barrier("checkpoint"); }});
    if (begin > 0) restore(trainer, store.open(begin));
    trainer.add(std::make_unique<Collector>(outcome, mutex));
    trainer.add(std::make_unique<StopAfter>(end));
    trainer.run();
    store.save(save_of(trainer));
  });
  return outcome;
}

TEST_P(Resharding, GoesOnAsIfItHadNotStopped) {
  const Scratch folder;
  const Outcome first = train_part(GetParam().from, folder.path(), 0, 2), second = train_part(GetParam().to, folder.path(), 2, 4);
  const Outcome& expected = reference().found;
  ASSERT_EQ(second.losses.size(), 2u);
  EXPECT_LT(relative(second.losses[0], expected.losses[2]), 1e-5);
  EXPECT_LT(relative(second.losses[1], expected.losses[3]), 1e-5);
  expect_parameters(second.parameters, reference());
  // Saved as whole tensors: every element once.
  EXPECT_EQ(checkpoint::CheckpointStore(folder.path()).open(4).load("lm_head.weight").size(0), 2051);
}

std::vector<Reshard> reshards() {
  const Case one{"One", 1, {}}, dp2{"Dp2", 2, {}}, dp4{"Dp4", 4, {}},
      tp2cp2{"Tp2Cp2Ep4", 4, {"--parallel.tp=2", "--parallel.cp=2", "--parallel.ep=4", "--parallel.sequence_parallel=true"}},
      cp3{"Cp3", 3, {"--parallel.cp=3"}},
      hsdp{"HsdpEp2", 4, {"--parallel.fsdp_replicate=2", "--parallel.fsdp_shard=2", "--parallel.ep=2"}};
  return {{one, dp4}, {dp4, one}, {dp2, tp2cp2}, {tp2cp2, hsdp}, {hsdp, dp2}, {tp2cp2, one}, {dp4, dp2}, {dp4, cp3}};
}

INSTANTIATE_TEST_SUITE_P(Layouts, Resharding, testing::ValuesIn(reshards()),
                         [](const auto& info) { return info.param.from.name + "To" + info.param.to.name; });

// Known from other trainers: the padded rows of the last shard came back wrong. Here nothing is padded.
TEST(Resume, OnTheSameLayoutGivesTheSameBits) {
  const Scratch folder;
  const Case layout{"", 4, {"--parallel.tp=2", "--parallel.ep=2"}};
  const Outcome whole = run(layout.ranks, layout.overrides);
  train_part(layout, folder.path(), 0, 2);
  const Outcome second = train_part(layout, folder.path(), 2, 4);
  EXPECT_EQ(second.losses, std::vector<double>(whole.losses.begin() + 2, whole.losses.end()));
  EXPECT_EQ(second.norms, std::vector<double>(whole.norms.begin() + 2, whole.norms.end()));
  for (const auto& [name, parameter] : whole.parameters) EXPECT_TRUE(parameter.equal(second.parameters.at(name))) << name;
}

// All tokens go to three of the eight experts, so that some ranks have none.
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
    Outcome outcome;
    std::mutex mutex;
    const Config config = tiny(overrides);
    dist::run_ranks(ranks, {}, [&](dist::World& world) {
      Trainer trainer(config, &world);
      trainer.add(std::make_unique<Crowd>());
      trainer.add(std::make_unique<Collector>(outcome, mutex));
      trainer.add(std::make_unique<StopAfter>(2));
      trainer.run();
    });
    return outcome;
  };
  const Outcome expected = run_crowded(1, {});
  for (const auto& [ranks, ep] : {std::pair(2, 2), std::pair(4, 4), std::pair(8, 8)}) {
    for (const char* recompute : {"none", "full"}) {
      const Outcome found =
          run_crowded(ranks, {fmt::format("--parallel.ep={}", ep), fmt::format("--recompute.mode={}", recompute)});
      ASSERT_EQ(found.losses.size(), 2u);
      for (size_t i = 0; i < 2; ++i) EXPECT_LT(relative(found.losses[i], expected.losses[i]), 1e-5) << ep << " " << recompute;
      EXPECT_LT(relative(found.norms[0], expected.norms[0]), 1e-5);
      const at::Tensor& idle = found.gradients.at("model.layers.2.ffn.experts.w1.weight");
      EXPECT_EQ(largest(idle.narrow(0, 3, 5)), 0);  // zeros, not missing
      EXPECT_GT(largest(idle.narrow(0, 0, 3)), 0);
    }
  }
}

// Known from other trainers: one rank decided alone that a step is skipped.
TEST(NonFinite, OnOneRankIsEveryRanksDecision) {
  const Config config = tiny({"--train.non_finite=skip", "--train.max_skips=5", "--train.steps=4"});
  for (const int poisoned : {0, 1}) {
    std::vector<int64_t> skipped;
    std::mutex mutex;
    dist::run_ranks(2, {}, [&](dist::World& world) {
      Trainer trainer(config, &world);
      trainer.add(std::make_unique<Poison>(poisoned));
      trainer.run();
      const std::lock_guard lock(mutex);
      skipped.push_back(trainer.progress().skipped_steps);
      EXPECT_EQ(trainer.progress().step, 4);
      for (const engine::ParameterSpec& spec : trainer.model().parameters->specs()) {
        EXPECT_TRUE(
            trainer.model().parameters->master(trainer.model().parameters->find(spec.name)).isfinite().all().item<bool>());
      }
    });
    EXPECT_EQ(skipped, (std::vector<int64_t>{1, 1}));
  }
}

// Pictures from 1 to 576 patches, some rows without, one sample a row: with two data-parallel ranks the first micro-batch has
// pictures on one of them, the second on none. With the usual eps: an mHC element's first gradient is 1e-10 of the largest, so
// that rounding decides its sign.
std::vector<std::string> pictures() {
  return {fmt::format("--data.train=[{}/tests/parity/pictures.jsonl]", HP_SOURCE_DIR), "--data.packing=false",
          "--data.shuffle=false", "--train.steps=2", "--optimizer.eps=1e-8"};
}

std::vector<Case> cases() {
  return {
      {"Dp2", 2, {}},
      {"Dp4Replicated", 4, {"--parallel.fsdp_shard=1", "--parallel.fsdp_replicate=4"}},
      {"Hsdp", 4, {"--parallel.fsdp_shard=2", "--parallel.fsdp_replicate=2"}},
      {"Dp2WithoutResharding", 2, {"--parallel.reshard_after_forward=false"}},
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
      {"Dp2Tp2Cp3MoreRanksThanExperts", 12, {"--parallel.tp=2", "--parallel.cp=3"}},
      {"Dp2Tp2Cp2Ep8", 8, {"--parallel.tp=2", "--parallel.cp=2", "--parallel.ep=8", "--recompute.mode=full"}},
      {"Dp2Tp2Cp2Ep4Hsdp",
       8,
       {"--parallel.tp=2", "--parallel.cp=2", "--parallel.ep=4", "--parallel.fsdp_replicate=2", "--parallel.fsdp_shard=2",
        "--parallel.sequence_parallel=true", "--recompute.mode=full", "--recompute.every=2"}},
      // The tower has three heads.
      {"PicturesDp2Alone", 2, {"--parallel.vision_ulysses=1"}, pictures()},
      {"PicturesDp2Ulysses2", 2, {"--parallel.vision_ulysses=2"}, pictures()},
      {"PicturesCp3Ulysses3", 3, {"--parallel.cp=3", "--parallel.vision_ulysses=3"}, pictures()},
      {"PicturesDp4Ulysses4",
       4,
       {"--parallel.vision_ulysses=4", "--recompute.mode=full", "--recompute.regather=[vision.*.to_heads]"},
       pictures()},
      {"PicturesTp2Cp2Alone", 4, {"--parallel.tp=2", "--parallel.cp=2", "--parallel.vision_ulysses=1"}, pictures()},
      {"PicturesDp2Tp2Cp2Ep4Ulysses8",
       8,
       {"--parallel.tp=2", "--parallel.cp=2", "--parallel.ep=4", "--parallel.cp_shard=balanced", "--parallel.vision_ulysses=8"},
       pictures()},
      {"PicturesDp2Tp2Cp3Ulysses4AcrossMicroBatches",
       12,
       {"--parallel.tp=2", "--parallel.cp=3", "--parallel.sequence_parallel=true", "--parallel.vision_ulysses=4"},
       pictures()},
  };
}

INSTANTIATE_TEST_SUITE_P(Layouts, Parity, testing::ValuesIn(cases()), [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace hyperparallel::train
