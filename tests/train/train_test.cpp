// The whole `train` command on configs/tiny.yaml: what it leaves in its folder beside metrics and checkpoints.
#include <gmock/gmock.h>

#include <fstream>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "checkpoint/convert.h"
#include "support/scratch.h"
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

TEST(Train, ExportsTheLastStepAsAFolderThatImportsToTheSameWeights) {
  const Scratch folder;
  const Config config = tiny(folder, {"--checkpoint.export_hf"});
  ASSERT_EQ(train(config), 0);
  const std::filesystem::path exported = folder / "run/hf/step-00000004";
  ASSERT_TRUE(std::filesystem::exists(exported / "tokenizer.json"));
  EXPECT_EQ(models::deepseek_v41::parse_model_config((exported / "config.json").string()).text, config.model.architecture.text);

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
