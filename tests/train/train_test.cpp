// The whole `train` command on configs/tiny.yaml: what it leaves in its folder beside metrics and checkpoints.
#include <gmock/gmock.h>

#include <unistd.h>

#include <fstream>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/convert.h"
#include "engine/memory.h"
#include "models/deepseek_v41/adapter.h"
#include "models/deepseek_v41/engram_metrics.h"
#include "support/scratch.h"
#include "train/evaluate.h"
#include "train/output_folder.h"
#include "train/report.h"
#include "train/trainer.h"

namespace hyperparallel::train {
namespace {

using Json = nlohmann::ordered_json;

Config tiny(const Scratch& folder, std::vector<std::string> overrides = {}) {
  overrides.insert(overrides.begin(), {"--train.output=" + (folder / "run").string(), "--train.threads=1", "--train.steps=4",
                                       "--optimizer.schedule.warmup_steps=1", "--validation.interval=2",
                                       "--checkpoint.interval=2", "--validation.generate_samples=0"});
  LoadOptions options;
  options.for_training = true;
  return load_config(std::filesystem::path(HP_SOURCE_DIR) / "configs/tiny.yaml", overrides, options);
}

std::vector<Json> metrics_of(const Scratch& folder) {
  std::vector<Json> steps;
  std::ifstream lines(folder / "run/metrics.jsonl");
  for (std::string line; std::getline(lines, line);) steps.push_back(Json::parse(line));
  return steps;
}

TEST(Train, AnswersToTheFirstValidationSamplesLeaveTrainingAsItIs) {
  const Scratch plain, sampled;
  ASSERT_EQ(train(tiny(plain)), 0);
  EXPECT_FALSE(std::filesystem::exists(plain / "run/samples.json"));
  ASSERT_EQ(train(tiny(sampled, {"--validation.generate_samples=3", "--validation.max_new_tokens=5"})), 0);
  const auto expected = metrics_of(plain), steps = metrics_of(sampled);
  ASSERT_EQ(steps.size(), 4u);
  for (size_t i = 0; i < steps.size(); ++i) {
    for (const char* name : {"loss", "grad_norm", "validation_metrics/loss", "moe/bias_abs_max"})
      EXPECT_EQ(steps[i].value(name, Json()), expected[i].value(name, Json())) << name << " of step " << i + 1;
  }
}

TEST(Train, SamplesAreShownInTheReportWithTheirPictures) {
  const Scratch folder;
  const Config config = tiny(folder, {"--validation.generate_samples=3", "--validation.interval=0", "--train.steps=1"});
  ASSERT_EQ(train(config), 0);
  const Json samples = Json::parse(file::read(folder / "run/samples.json"));
  ASSERT_EQ(samples.size(), 3u);
  std::ifstream lines(config.data.validation[0].path);
  size_t pictures = 0;
  for (const Json& sample : samples) {
    std::string line;
    std::getline(lines, line);
    const Json last = Json::parse(line).at("messages").back();
    EXPECT_EQ(sample.at("expected"), last.at("content"));
    EXPECT_TRUE(sample.at("predicted").is_string());
    EXPECT_NE(sample.at("question"), "");
    for (const Json& image : sample.at("images")) EXPECT_TRUE(std::filesystem::exists(image.get<std::string>())) << image;
    pictures += sample.at("images").size();
  }
  EXPECT_GT(pictures, 0u);
  size_t shown = 0;
  const Json data = report_data(folder / "run");
  for (const Json& example : data.at("examples")) shown += example.at("pictures").size();
  EXPECT_EQ(shown, pictures);
}

TEST(Train, ProfiledStepsLeaveATraceAndTheMemoryOfEachSegment) {
  const Scratch folder;
  ASSERT_EQ(train(tiny(folder, {"--profile.start=2", "--profile.steps=2", "--recompute.mode=full"})), 0);
  const Json memory = Json::parse(file::read(folder / "run/traces/memory-steps-2-3.json")).at("segments");
  std::set<std::string> passes;
  int64_t previous = std::numeric_limits<int64_t>::max();
  for (const Json& row : memory) {
    passes.insert(row.at("pass"));
    EXPECT_LE(row.at("highest_bytes"), previous);
    EXPECT_GE(row.at("own_bytes"), 0);
    EXPECT_LT(row.at("own_bytes"), row.at("highest_bytes"));
    previous = row.at("highest_bytes");
    if (row.at("segment") == "layers.3.attn.attend" && row.at("pass") == "backward") {
      EXPECT_EQ(row.at("runs"), 4);  // steps x micro-batches
    }
  }
  EXPECT_EQ(passes, (std::set<std::string>{"forward", "recompute", "backward"}));

  std::set<std::string> names, curves;
  const Json trace = Json::parse(file::read(folder / "run/traces/trace-steps-2-3.json"));
  for (const Json& event : trace.at("traceEvents")) {
    if (event.at("ph") == "X") names.insert(event.at("name"));
    if (event.at("ph") == "C") curves.insert(event.at("args").begin().key());
  }
  for (const char* name : {"step 2", "step 3", "backward layers.3.attn.attend", "optimizer", "checkpoint", "validation"})
    EXPECT_TRUE(names.contains(name)) << name;
  EXPECT_TRUE(curves.contains("highest bytes") && curves.contains("live bytes"));

  const Scratch without;
  ASSERT_EQ(train(tiny(without, {"--profile.steps=1", "--profile.no-memory", "--train.steps=1"})), 0);
  EXPECT_TRUE(std::filesystem::exists(without / "run/traces/trace-steps-1-1.json"));
  EXPECT_FALSE(std::filesystem::exists(without / "run/traces/memory-steps-1-1.json"));
}

TEST(Train, EveryMetricOfOneProcessIsInBothSinks) {
  const Scratch folder;
  ASSERT_EQ(train(tiny(folder, {"--checkpoint.async_mode=false"})), 0);
  const std::vector<Json> steps = metrics_of(folder);
  ASSERT_EQ(steps.size(), 4u);
  std::string events;
  for (const auto& entry : std::filesystem::directory_iterator(folder / "run/tb")) events += file::read(entry.path());
  for (const char* name : {"validation_metrics/loss", "memory/max_active(GiB)", "moe/load_max_over_mean", "moe/bias_abs_max",
                           "engram/hit_rows", "engram/lookup(s)", "data/samples_dropped", "data/tokens_masked(%)", "data/epoch",
                           "checkpoint/save(s)", "checkpoint/stall(s)", "train/skipped_steps"}) {
    EXPECT_TRUE(steps[1].contains(name)) << name;
    EXPECT_NE(events.find(name), std::string::npos) << name;
  }
  for (const char* name :
       {"loss_metrics/global_avg_loss", "grad_norm", "throughput(tps)", "tflops", "mfu(%)", "time_metrics/end_to_end(s)",
        "time_metrics/data_loading(s)", "time_metrics/data_loading(%)", "memory/rss(GiB)", "lr"}) {
    EXPECT_NE(events.find(name), std::string::npos) << name;
  }
  EXPECT_GT(steps[0].at("memory/max_active(GiB)"), 0);
  EXPECT_LT(steps[0].at("memory/max_active(GiB)"), 1);
  EXPECT_GT(steps[0].at("engram/lookup(s)"), 0);
  EXPECT_LT(steps[0].at("engram/lookup(s)"), steps[0].at("seconds"));
  const double masked = 100 - 100.0 * steps[0].at("supervised_tokens").get<double>() / steps[0].at("tokens").get<double>();
  EXPECT_NEAR(steps[0].at("data/tokens_masked(%)").get<double>(), masked, 1e-6);
}

// Text of the length at which attention decides the peak.
TEST(Answers, AreComputedInTheChunksOfTheKernelsSection) {
  const Scratch folder;
  std::string text;
  for (int i = 0; i < 60; ++i) text += "Who may copy this library, and what does it cost? ";
  file::write(
      folder / "long.jsonl",
      Json{{"messages", {{{"role", "user"}, {"content", text}}, {{"role", "assistant"}, {"content", "Everyone."}}}}}.dump() +
          "\n");
  const auto answer = [&](const std::vector<std::string>& kernels) {
    std::vector<std::string> overrides = kernels;
    overrides.push_back("--data.validation=" + (folder / "long.jsonl").string());
    const Config config = tiny(folder, overrides);
    set_up_libtorch(config.train);
    const data::Tokenizer tokenizer = data::Tokenizer::load(config.data.tokenizer.string());
    const auto model = build_run_model(config, tokenizer);
    model->parameters->initialise(1);
    EvaluateOptions options;
    options.split = "validation";
    options.max_new_tokens = 2;
    const int64_t before = engine::allocated_bytes();
    engine::reset_peak_allocated_bytes();
    const auto answers = answer_split(config, *model, tokenizer, options, [](int64_t, int64_t) {});
    return std::pair(answers.at(0).predicted, engine::peak_allocated_bytes() - before);
  };
  const auto [text_of_large, bytes_of_large] =
      answer({"--kernels.attention=reference", "--kernels.attention_chunk=4096", "--kernels.index_chunk=100000000"});
  const auto [text_of_small, bytes_of_small] =
      answer({"--kernels.attention=reference", "--kernels.attention_chunk=1", "--kernels.index_chunk=1"});
  EXPECT_EQ(text_of_large, text_of_small);
  EXPECT_LT(2 * bytes_of_small, bytes_of_large);
}

TEST(Train, BegunAnewLosesNothingBeforeItHasACheckpoint) {
  const Scratch folder;
  ASSERT_EQ(train(tiny(folder)), 0);
  file::write(folder / "broken.jsonl", "{\n");
  EXPECT_THROW(train(tiny(folder, {"--train.restart", "--data.train=" + (folder / "broken.jsonl").string()})), DataError);
  EXPECT_EQ(checkpoint::CheckpointStore(folder / "run/before-restart/checkpoints").latest(), 4);
  EXPECT_TRUE(std::filesystem::exists(folder / "run/before-restart/metrics.jsonl"));
  // A second attempt that fails as well keeps the real run, too.
  EXPECT_THROW(train(tiny(folder, {"--train.restart", "--data.train=" + (folder / "broken.jsonl").string()})), DataError);
  EXPECT_EQ(checkpoint::CheckpointStore(folder / "run/before-restart/checkpoints").latest(), 4);
  ASSERT_EQ(train(tiny(folder, {"--train.restart", "--train.steps=1"})), 0);
  EXPECT_FALSE(std::filesystem::exists(folder / "run/before-restart"));
}

TEST(Train, BegunAnewTwiceKeepsTheRunThatEndedAndTheOneThatDidNot) {
  const Scratch folder;
  ASSERT_EQ(train(tiny(folder)), 0);
  ASSERT_EQ(train(tiny(folder, {"--train.restart", "--train.steps=1"})), 0);  // as if it had been killed before its end:
  std::filesystem::create_directories(folder / "run/before-restart/checkpoints");
  ASSERT_EQ(train(tiny(folder, {"--train.steps=3", "--train.output=" + (folder / "first").string()})), 0);
  std::filesystem::remove_all(folder / "run/before-restart/checkpoints");
  std::filesystem::rename(folder / "first/checkpoints", folder / "run/before-restart/checkpoints");
  file::write(folder / "broken.jsonl", "{\n");
  EXPECT_THROW(train(tiny(folder, {"--train.restart", "--data.train=" + (folder / "broken.jsonl").string()})), DataError);
  EXPECT_EQ(checkpoint::CheckpointStore(folder / "run/before-restart/checkpoints").latest(), 3);
  EXPECT_EQ(checkpoint::CheckpointStore(folder / "run/before-restart-2/checkpoints").latest(), 1);
  ASSERT_EQ(train(tiny(folder, {"--train.restart", "--train.steps=1"})), 0);
  EXPECT_THAT(runs_set_aside(folder / "run"), testing::IsEmpty());
}

// Steps take as many rows as the ramp says, and a run that is cut within it goes on with the same bits.
TEST(Train, ABatchRampIsResumedExactly) {
  const Scratch folder;
  const std::vector<std::string> ramp{
      "--train.batch_ramp=[{until_step: 1, global_batch_size: 2}, {until_step: 3, global_batch_size: 6}]",
      "--train.local_batch_size=2", "--train.global_batch_size=4", "--optimizer.schedule.total_steps=4"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), ramp.begin(), ramp.end());
    return tiny(folder, more);
  };
  const Config config = with({});
  EXPECT_EQ(config.batch_size(1), 2);
  EXPECT_EQ(config.batch_size(3), 6);
  EXPECT_EQ(config.batch_size(4), 4);
  ASSERT_EQ(train(with({})), 0);
  ASSERT_EQ(train(with({"--train.steps=2", "--train.output=" + (folder / "cut").string()})), 0);
  ASSERT_EQ(train(with({"--train.output=" + (folder / "cut").string()})), 0);
  const auto whole = checkpoint::CheckpointStore(folder / "run/checkpoints").open(4),
             cut = checkpoint::CheckpointStore(folder / "cut/checkpoints").open(4);
  for (const auto& [name, tensor] : whole.tensors()) EXPECT_TRUE(whole.load(name).equal(cut.load(name))) << name;
  EXPECT_EQ(whole.document("loader.json"), cut.document("loader.json"));
}

TEST(Train, AnotherUpdateRuleBeginsWithAFreshState) {
  const Scratch folder;
  ASSERT_EQ(train(tiny(folder, {"--train.steps=2"})), 0);
  ASSERT_EQ(train(tiny(folder, {"--train.steps=4", "--optimizer.name=muon"})), 0);
  const auto checkpoint = checkpoint::CheckpointStore(folder / "run/checkpoints").open(4);
  EXPECT_TRUE(checkpoint.has("optimizer/momentum/lm_head.weight"));
  EXPECT_FALSE(checkpoint.has("optimizer/exp_avg/lm_head.weight"));
  EXPECT_EQ(checkpoint.load("optimizer/step/model.norm.weight").item<int64_t>(), 4);  // AdamW still: it goes on
}

TEST(Train, WeightsThatAreNotFiniteAreNamedAndNoSample) {
  const Scratch folder;
  Trainer trainer(tiny(folder, {"--train.steps=1"}));
  engine::ParameterStore& store = *trainer.model().parameters;
  store.master(store.find("model.norm.weight"))[3] = NAN;
  store.masters_changed();
  try {
    trainer.run();
    FAIL();
  } catch (const NonFiniteError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("the parameter model.norm.weight holds 1 values that are not finite"));
  }
}

TEST(Train, OneTrainingAtATimeWritesIntoAFolder) {
  const Scratch folder;
  const OutputLock lock(folder / "run");
  try {
    train(tiny(folder));
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr(fmt::format("process {} trains into", getpid())));
  }
  file::write(folder / "file", "");
  EXPECT_THROW(OutputLock(folder / "file"), UsageError);
  file::create_folders(folder / "hf");
  file::write(folder / "hf/model.safetensors", "");
  EXPECT_THROW(OutputLock(folder / "hf"), UsageError);
}

TEST(Train, StartsFromImportedWeightsInItsFolder) {
  const Scratch folder;
  ASSERT_EQ(train(tiny(folder, {"--checkpoint.export_hf"})), 0);
  checkpoint::CheckpointStore store(folder / "imported/checkpoints");
  checkpoint::import_hf(checkpoint::HfFolder(folder / "run/hf/step-00000004"), store);
  std::filesystem::rename(folder / "run", folder / "first");
  std::filesystem::rename(folder / "imported", folder / "run");
  ASSERT_EQ(train(tiny(folder, {"--train.steps=5"})), 0);
  const auto metrics = metrics_of(folder);
  ASSERT_EQ(metrics.size(), 5u);
  std::filesystem::rename(folder / "run", folder / "second");
  ASSERT_EQ(train(tiny(folder, {"--model.weights=" + (folder / "first/hf/step-00000004").string(), "--train.steps=5"})), 0);
  EXPECT_EQ(metrics[0].at("loss"), metrics_of(folder)[0].at("loss"));
}

TEST(Train, BegunAnewKeepsNothingOfTheEarlierRun) {
  const Scratch folder;
  ASSERT_EQ(train(tiny(folder)), 0);
  file::write(folder / "run/eval.json", "{}");
  file::write(folder / "run/samples.json", "[]");
  ASSERT_EQ(train(tiny(folder, {"--train.restart", "--train.steps=1"})), 0);
  EXPECT_FALSE(std::filesystem::exists(folder / "run/eval.json"));
  EXPECT_FALSE(std::filesystem::exists(folder / "run/samples.json"));
  EXPECT_EQ(metrics_of(folder).size(), 1u);
  EXPECT_EQ(checkpoint::CheckpointStore(folder / "run/checkpoints").steps(), std::vector<int64_t>{1});
}

TEST(EngramMetrics, RowsOfAStepAreCountedOncePerLayer) {
  models::deepseek_v41::ModelInputs names;
  names.engram.resize(2);
  names.engram[0].rows = {0}, names.engram[1].rows = {1};
  const auto batch = [](const std::vector<int64_t>& first, const std::vector<int64_t>& second) {
    return engine::ValueMap{{0, at::tensor(first, at::kLong)}, {1, at::tensor(second, at::kLong)}};
  };
  EXPECT_EQ(engram_hit_rows(names, {batch({1, 2, 3}, {1})}), 4);
  EXPECT_EQ(engram_hit_rows(names, {batch({1, 2, 3}, {1}), batch({3, 4}, {1, 5})}), 6);  // 1 2 3 4 | 1 5
}

TEST(Train, ExportsTheLastStepAsAFolderThatImportsToTheSameWeights) {
  const Scratch folder;
  const Config config = tiny(folder, {"--checkpoint.export_hf"});
  ASSERT_EQ(train(config), 0);
  const std::filesystem::path exported = folder / "run/hf/step-00000004";
  ASSERT_TRUE(std::filesystem::exists(exported / "tokenizer.json"));
  EXPECT_EQ(models::deepseek_v41::parse_model_config((exported / "config.json").string()).text,
            models::deepseek_v41::config_of(*config.model.architecture).text);

  checkpoint::CheckpointStore run(folder / "run/checkpoints"), imported(folder / "imported");
  checkpoint::import_hf(checkpoint::HfFolder(exported), imported);
  const checkpoint::Checkpoint trained = run.open(4), again = imported.open(0);
  size_t parameters = 0;
  for (const auto& [name, tensor] : trained.tensors()) {
    if (name.find('/') != std::string::npos) continue;
    EXPECT_TRUE(trained.load(name).equal(again.load(name))) << name;
    ++parameters;
  }
  EXPECT_EQ(parameters, again.tensors().size());

  // Run again, it is finished; begun anew, it refuses before anything is lost.
  EXPECT_EQ(train(config), 0);
  EXPECT_THROW(train(tiny(folder, {"--checkpoint.export_hf", "--train.restart"})), ConfigError);
  EXPECT_EQ(run.latest(), 4);
}

}  // namespace
}  // namespace hyperparallel::train
