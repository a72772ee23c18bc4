// The training loop on configs/tiny.yaml: resume, accumulation, recompute, refused steps.
#include "train/trainer.h"

#include <gmock/gmock.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "checkpoint/store.h"
#include "support/scratch.h"
#include "train/batch_dump.h"
#include "train/training_state.h"

namespace hyperparallel::train {
namespace {

Config tiny(const std::vector<std::string>& overrides = {}) {
  std::vector<std::string> all{"--train.output=" + (std::filesystem::temp_directory_path() / "hyperparallel-unused").string(),
                               "--train.threads=1", "--validation.interval=0"};
  all.insert(all.end(), overrides.begin(), overrides.end());
  LoadOptions options;
  options.for_training = true;
  return load_config(std::filesystem::path(HP_SOURCE_DIR) / "configs/tiny.yaml", all, options);
}

// Records what every step reports, and stops after `last`.
struct Recorder : TrainerCallback {
  explicit Recorder(std::vector<StepMetrics>& steps, int64_t last) : steps(steps), last(last) {}
  void on_step_end(Trainer& trainer, StepMetrics& metrics) override {
    steps.push_back(metrics);
    if (metrics.step == last) trainer.request_stop("test");
  }
  std::vector<StepMetrics>& steps;
  int64_t last;
};

std::vector<StepMetrics> run_to(Trainer& trainer, int64_t last) {
  std::vector<StepMetrics> steps;
  trainer.add(std::make_unique<Recorder>(steps, last));
  trainer.run();
  return steps;
}

std::map<std::string, at::Tensor> parameters_of(Trainer& trainer) {
  std::map<std::string, at::Tensor> tensors;
  const engine::ParameterStore& store = *trainer.model().parameters;
  for (const engine::ParameterSpec& spec : store.specs()) tensors[spec.name] = store.master(store.find(spec.name)).clone();
  return tensors;
}

void expect_same_bits(const std::map<std::string, at::Tensor>& a, const std::map<std::string, at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) EXPECT_TRUE(tensor.equal(b.at(name))) << name;
}

TEST(Trainer, LearnsAndReportsEveryStep) {
  Trainer trainer(tiny());
  const auto steps = run_to(trainer, 10);
  ASSERT_EQ(steps.size(), 10u);
  EXPECT_LT(steps.back().loss, steps.front().loss - 0.5);
  for (const StepMetrics& step : steps) {
    EXPECT_GT(step.supervised_tokens, 0);
    EXPECT_GT(step.grad_norm, 0);
    EXPECT_GE(step.extra.at("moe/load_max_over_mean"), 1);
  }
}

// Also with everything that changes from step to step, across its borders.
class ResumedTrainer : public testing::TestWithParam<std::vector<std::string>> {};

TEST_P(ResumedTrainer, GivesTheBitsOfARunThatWasNotStopped) {
  const auto tiny_with = [](std::vector<std::string> overrides) {
    overrides.insert(overrides.end(), GetParam().begin(), GetParam().end());
    return tiny(overrides);
  };
  Trainer whole(tiny_with({}));
  const auto expected = run_to(whole, 7);

  const Scratch folder;
  std::vector<StepMetrics> steps;
  std::map<std::string, at::Tensor> parameters;
  for (const int64_t last : {3, 5, 7}) {
    Trainer part(tiny_with(last == 5 ? std::vector<std::string>{"--data.workers=2"} : std::vector<std::string>{}));
    checkpoint::CheckpointStore store(folder.path());
    if (last > 3) restore(part, store.open(*store.latest()));
    for (const StepMetrics& step : run_to(part, last)) steps.push_back(step);
    store.save(save_of(part));
    parameters = parameters_of(part);
  }
  ASSERT_EQ(steps.size(), expected.size());
  for (size_t i = 0; i < steps.size(); ++i) {
    EXPECT_EQ(steps[i].step, expected[i].step);
    EXPECT_EQ(steps[i].loss, expected[i].loss) << "step " << i + 1;
    EXPECT_EQ(steps[i].grad_norm, expected[i].grad_norm) << "step " << i + 1;
    EXPECT_EQ(steps[i].extra.at("moe/bias_abs_max"), expected[i].extra.at("moe/bias_abs_max"));
  }
  expect_same_bits(parameters, parameters_of(whole));
}

INSTANTIATE_TEST_SUITE_P(Constant, ResumedTrainer, testing::Values(std::vector<std::string>{}));
INSTANTIATE_TEST_SUITE_P(Changing, ResumedTrainer,
                         testing::Values(std::vector<std::string>{
                             "--train.length_ramp=[{until_step: 2, seq_len: 64}, {until_step: 3, seq_len: 80}]",
                             "--train.batch_ramp=[{until_step: 4, global_batch_size: 2}]", "--optimizer.name=muon",
                             "--optimizer.schedules=[{name: slow, lr: 1e-4, kind: cosine, warmup_steps: 5}]",
                             "--optimizer.groups=[{match: '*.wq_?.weight', schedule: slow}]", "--optimizer.state_storage=mmap",
                             "--optimizer.state_folder=/tmp", "--model.engram_storage=mmap", "--model.engram_folder=/tmp"}));

TEST(Trainer, ARowGrowsWithTheRampAndGroupsHaveTheirOwnRates) {
  class Look : public TrainerCallback {
   public:
    explicit Look(std::vector<int64_t>& widths) : widths_(widths) {}
    void on_batches(Trainer&, int64_t, const std::vector<data::MicroBatch>& batches) override {
      widths_.push_back(batches.at(0).seq_len);
    }

   private:
    std::vector<int64_t>& widths_;
  };
  Trainer trainer(tiny({"--train.length_ramp=[{until_step: 2, seq_len: 64}, {until_step: 3, seq_len: 80}]",
                        "--optimizer.schedules=[{name: slow, kind: linear_to_min, lr: 0.5}]", "--train.steps=4",
                        "--optimizer.groups=[{match: model.norm.weight, schedule: slow}]"}));
  std::vector<int64_t> widths;
  trainer.add(std::make_unique<Look>(widths));
  const auto steps = run_to(trainer, 4);
  EXPECT_THAT(widths, testing::ElementsAre(64, 64, 80, trainer.config().data.seq_len));
  EXPECT_EQ(steps[0].extra.at("lr/slow"), 0.5);
  EXPECT_EQ(steps[2].extra.at("lr/slow"), 0.25);
}

TEST(Trainer, SettingsThatChangedSinceTheCheckpointAreTold) {
  const Scratch folder;
  checkpoint::CheckpointStore store(folder.path());
  Trainer trainer(tiny());
  run_to(trainer, 1);
  store.save(save_of(trainer));
  const checkpoint::Checkpoint saved = store.open(*store.latest());
  EXPECT_THAT(changed_settings(saved, tiny()), testing::IsEmpty());
  EXPECT_THAT(changed_settings(saved, tiny({"--optimizer.lr=0.5", "--train.dtype=bfloat16", "--data.workers=2",
                                            "--train.steps=99", "--optimizer.betas=[0.8,0.95]"})),
              testing::UnorderedElementsAre("optimizer.lr: 0.01 -> 0.5", "train.dtype: float32 -> bfloat16",
                                            "optimizer.betas: 0.9, 0.95 -> 0.8, 0.95"));
}

TEST(Trainer, RecomputeInAnyMixGivesTheSameBits) {
  Trainer plain(tiny());
  const auto expected = run_to(plain, 2);
  for (const std::vector<std::string>& overrides : std::vector<std::vector<std::string>>{
           {"--recompute.mode=full"},
           {"--recompute.mode=full", "--recompute.every=3"},
           {"--recompute.mode=full", "--recompute.offload=[\"*\"]", "--debug.check_ledger", "--checkpoint.async_mode=false"},
           {"--recompute.mode=selective", "--recompute.every=2", "--recompute.keep=[layers.*.attn_out,layers.*.hc_attn.x]"}}) {
    Trainer trainer(tiny(overrides));
    const auto steps = run_to(trainer, 2);
    for (size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(steps[i].loss, expected[i].loss);
      EXPECT_EQ(steps[i].grad_norm, expected[i].grad_norm);
      EXPECT_EQ(steps[i].extra.at("moe/load_max_over_mean"), expected[i].extra.at("moe/load_max_over_mean"));
    }
    expect_same_bits(parameters_of(trainer), parameters_of(plain));
  }
}

// Known from other trainers: counts doubled by recomputation, biases moved at every micro-batch, loss divided per micro-batch.
TEST(Trainer, SplittingAStepIntoMicroBatchesChangesNeitherLossNorRouting) {
  Trainer one(tiny({"--train.local_batch_size=4"})), four(tiny({"--train.local_batch_size=1"}));
  const auto a = run_to(one, 2), b = run_to(four, 2);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(a[i].supervised_tokens, b[i].supervised_tokens);
    EXPECT_NEAR(a[i].loss, b[i].loss, 1e-5 * a[i].loss);
    EXPECT_NEAR(a[i].grad_norm, b[i].grad_norm, 1e-4 * a[i].grad_norm);
    EXPECT_EQ(a[i].extra.at("moe/bias_abs_max"), b[i].extra.at("moe/bias_abs_max"));
    EXPECT_EQ(a[i].extra.at("moe/load_max_over_mean"), b[i].extra.at("moe/load_max_over_mean"));
  }
}

TEST(Trainer, ValidationStepsAreGlobalBatchesWhateverTheirMicroBatches) {
  const auto loss = [](const std::string& steps, const std::string& local) {
    return Trainer(tiny({"--data.validation=" HP_SOURCE_DIR "/configs/tiny/train.jsonl", "--train.global_batch_size=2",
                         "--validation.steps=" + steps, "--train.local_batch_size=" + local}))
        .validate();
  };
  EXPECT_NEAR(loss("1", "1"), loss("1", "2"), 1e-5);
  EXPECT_GT(std::abs(loss("1", "2") - loss("0", "2")), 1e-4);  // the file has more than one batch
}

TEST(Trainer, RefusesAStepThatIsNotFiniteAndNamesItsSamples) {
  Trainer trainer(tiny());
  trainer.model()
      .parameters->master(trainer.model().parameters->find("model.norm.weight"))
      .fill_(std::numeric_limits<float>::quiet_NaN());
  try {
    run_to(trainer, 1);
    FAIL();
  } catch (const NonFiniteError& error) {
    EXPECT_EQ(error.code(), ExitCode::kNonFinite);
    EXPECT_THAT(error.what(), testing::AllOf(testing::HasSubstr("step 1"), testing::HasSubstr("train.jsonl:")));
  }
}

TEST(Trainer, SkippedStepsLeaveEverythingAsItWasAndEndTheRunAfterTheLimit) {
  Trainer trainer(tiny({"--train.non_finite=skip", "--train.max_skips=2"}));
  at::Tensor& gain = trainer.model().parameters->master(trainer.model().parameters->find("model.norm.weight"));
  gain[0] = std::numeric_limits<float>::quiet_NaN();
  const auto before = parameters_of(trainer);
  EXPECT_THROW(run_to(trainer, 9), NonFiniteError);
  EXPECT_EQ(trainer.progress().step, 2);
  EXPECT_EQ(trainer.progress().skipped_steps, 3);
  const auto after = parameters_of(trainer);
  for (const auto& [name, tensor] : before) {
    if (name == "model.norm.weight") continue;  // holds the NaN
    EXPECT_TRUE(tensor.equal(after.at(name))) << name;
  }
}

TEST(Trainer, TheLedgerAgreesWithTheAllocatorInEveryRecomputeMode) {
  for (const char* mode : {"--recompute.mode=none", "--recompute.mode=full"}) {
    Trainer trainer(tiny({"--debug.check_ledger", "--checkpoint.async_mode=false", mode}));
    EXPECT_EQ(run_to(trainer, 2).size(), 2u) << mode;
    EXPECT_GT(trainer.validate(), 0) << mode;
  }
}

TEST(Trainer, TensorsThatTheLedgerDoesNotKnowAreFound) {
  Trainer trainer(tiny({"--debug.check_ledger", "--checkpoint.async_mode=false"}));
  std::vector<at::Tensor> leaked;
  trainer.model().executor->watch([&](const std::string& name, const std::string&, const at::Tensor&) {
    if (name == "layers.3.attn_out") leaked.push_back(at::zeros({4 << 20}));
  });
  try {
    run_to(trainer, 1);
    FAIL();
  } catch (const InternalError& error) {
    EXPECT_THAT(error.what(), testing::AllOf(testing::ContainsRegex("debug.check_ledger: after `[a-z ]* layers.3."),
                                             testing::HasSubstr("bytes live")));
  }
}

TEST(BatchDump, WritesTheFirstBatchesAsTheyAreTrainedOn) {
  const Scratch folder;
  const Config config = tiny({"--data.no-packing"});
  Trainer trainer(config);
  trainer.add(std::make_unique<BatchDump>(folder / "debug", 3));
  run_to(trainer, 3);
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "debug")) names.push_back(entry.path().filename());
  EXPECT_THAT(names, testing::UnorderedElementsAre("step-00000001-batch-0.safetensors", "step-00000001-batch-1.safetensors",
                                                   "step-00000002-batch-0.safetensors"));

  data::Loader loader(trainer.tokenizer(), loader_options(config, config.data.train, /*repeat=*/true));
  const data::MicroBatch first = loader.next().value();
  ASSERT_FALSE(first.images.empty());
  ASSERT_THAT(first.padding, testing::Contains(1));
  const checkpoint::SafetensorsReader file(folder / "debug/step-00000001-batch-0.safetensors");
  const auto values = [&](const std::string& name) {
    const at::Tensor tensor = file.tensor(name);
    EXPECT_EQ(tensor.size(0), 2) << name;  // rows
    return std::vector<int64_t>(tensor.const_data_ptr<int64_t>(), tensor.const_data_ptr<int64_t>() + tensor.numel());
  };
  EXPECT_EQ(values("input_ids"), first.input_ids);
  EXPECT_EQ(values("labels"), first.labels);
  EXPECT_EQ(values("position_ids"), first.position_ids);
  const std::vector<int64_t> documents = values("document_ids");
  for (size_t t = 0; t < documents.size(); ++t) {
    EXPECT_EQ(documents[t] < 0, first.padding[t] != 0) << t;
    if (documents[t] >= 0) {
      EXPECT_EQ(first.cu_seqlens.at(documents[t]) + first.position_ids[t], static_cast<int64_t>(t));
    }
  }
  const at::Tensor picture = file.tensor("image.0");
  EXPECT_EQ(picture.size(0), first.images[0].rows);
  EXPECT_TRUE(picture.flatten().equal(at::tensor(first.images[0].patches)));
  EXPECT_THAT(file.metadata().at("samples"), testing::HasSubstr(data::to_string(first.samples[0])));
}

TEST(Trainer, EveryValidationUsesTheSameSamples) {
  for (const char* steps : {"--validation.steps=1", "--validation.steps=0"}) {
    Trainer trainer(tiny({steps}));
    const double before = trainer.validate();
    EXPECT_GT(before, 0);
    EXPECT_EQ(trainer.validate(), before);
    run_to(trainer, 10);
    EXPECT_LT(trainer.validate(), before);
  }
}

TEST(Trainer, KeepGlobThatMatchesNothingIsRefused) {
  EXPECT_THROW(Trainer(tiny({"--recompute.mode=selective", "--recompute.keep=[layers.*.nothing]"})), ConfigError);
}

std::vector<std::string> with_drafts(std::vector<std::string> more = {}) {
  std::vector<std::string> all{"--train.loss.draft.weight=1"};
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

bool is_draft(const std::string& name) {
  return name.starts_with("mtp.");
}

// Their inputs are detached: the model learns as without them, to the bit.
TEST(DraftLayers, ReachNothingButThemselves) {
  Trainer with(tiny(with_drafts({"--optimizer.max_norm=0"}))),
      without(tiny({"--optimizer.max_norm=0", "--train.loss.draft.weight=0"}));
  const auto steps = run_to(with, 3), plain = run_to(without, 3);
  for (size_t i = 0; i < steps.size(); ++i) EXPECT_EQ(steps[i].loss, plain[i].loss);
  auto all = parameters_of(with);
  int64_t drafts = 0;
  drafts = static_cast<int64_t>(std::erase_if(all, [](const auto& entry) { return is_draft(entry.first); }));
  EXPECT_EQ(drafts, 56);
  expect_same_bits(all, parameters_of(without));
  EXPECT_LT(steps.back().extra.at("loss/draft"), steps.front().extra.at("loss/draft"));
  EXPECT_GE(steps.back().extra.at("draft/hit_rate"), 0);
}

TEST(DraftLayers, LearnAloneWhileTheModelIsFrozen) {
  Trainer trainer(tiny(with_drafts({"--train.trainable=['mtp.*']", "--optimizer.weight_decay=0.5"})));
  const auto before = parameters_of(trainer);
  const auto steps = run_to(trainer, 4);
  int64_t moved = 0;
  for (const auto& [name, tensor] : parameters_of(trainer)) {
    if (is_draft(name)) {
      moved += tensor.equal(before.at(name)) ? 0 : 1;
    } else {
      EXPECT_TRUE(tensor.equal(before.at(name))) << name;  // weights, router biases
    }
  }
  EXPECT_GE(moved, 52);
  EXPECT_LT(steps.back().extra.at("loss/draft"), steps.front().extra.at("loss/draft"));
  for (const optim::StateTensor& state : trainer.optimizer().state())
    EXPECT_TRUE(state.parameter.empty() || is_draft(state.parameter));
}

// A model that was trained without them gets draft layers; then all learn.
TEST(DraftLayers, AreAddedToACheckpointAndGoOn) {
  const Scratch scratch;
  checkpoint::CheckpointStore store(scratch.path());
  Trainer first(tiny({"--train.loss.draft.weight=0"}));
  run_to(first, 2);
  store.save(save_of(first));
  Trainer second(tiny(with_drafts({"--train.trainable=['mtp.*']"})));
  restore(second, *store.open_verified(false));
  run_to(second, 4);
  store.save(save_of(second));
  Trainer third(tiny(with_drafts())), again(tiny(with_drafts()));
  restore(third, *store.open_verified(false));
  restore(again, *store.open_verified(false));
  expect_same_bits(parameters_of(third), parameters_of(second));
  EXPECT_EQ(run_to(third, 6).back().loss, run_to(again, 6).back().loss);
  expect_same_bits(parameters_of(third), parameters_of(again));
}

TEST(DraftLayers, WhatDoesNotFitIsRefusedByName) {
  const auto refusal = [](std::vector<std::string> overrides) -> std::string {
    try {
      Trainer trainer(tiny(overrides));
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "accepted";
  };
  using testing::HasSubstr;
  EXPECT_THAT(refusal(with_drafts({"--model.text_config.num_nextn_predict_layers=0"})),
              HasSubstr("num_nextn_predict_layers is 0"));
  EXPECT_THAT(refusal(with_drafts({"--model.text_config.dspark_target_layer_ids=[5,7]"})),
              HasSubstr("below num_hidden_layers 7"));
  EXPECT_THAT(refusal(with_drafts({"--model.text_config.dspark_noise_token_id=2051"})), HasSubstr("vocabulary of 2051"));
  EXPECT_THAT(refusal(with_drafts({"--model.text_config.dspark_num_experts_per_tok=6"})),
              HasSubstr("dspark_num_experts_per_tok 6 is more than dspark_n_routed_experts 5"));
  EXPECT_THAT(refusal({"--train.trainable=['mtp.*']", "--train.loss.draft.weight=0"}), HasSubstr("`mtp.*` matches no parameter"));
}

}  // namespace
}  // namespace hyperparallel::train
