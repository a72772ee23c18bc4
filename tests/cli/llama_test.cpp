// A second family of models through the commands.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "cli/program.h"

namespace hyperparallel {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const std::string kTinyLlama = HP_SOURCE_DIR "/tests/models/llama/tiny", kLlamaRecipe = HP_SOURCE_DIR "/configs/llama_tiny.yaml";

class LlamaCommands : public testing::Test {
 protected:
  std::string at(const std::string& name) const { return (folder_.path() / name).string(); }
  static ProgramResult run(const std::string& arguments, int code = 0) {
    ProgramResult result = run_program(arguments);
    EXPECT_EQ(result.code, code) << arguments << "\n" << result.error;
    return result;
  }
  TemporaryFolder folder_;
};

TEST_F(LlamaCommands, ImportedAndExportedWeightsAreTheSameBits) {
  run("convert import " + kTinyLlama + " --out " + at("run"));
  run("convert export " + at("run") + " --out " + at("hf") + " --dtype float32");
  run("convert import " + at("hf") + " --out " + at("again"));
  const std::string shard = "/checkpoints/step-00000000/rank-00000.safetensors";
  EXPECT_NE(read_text(at("run") + shard), "");
  EXPECT_EQ(read_text(at("run") + shard), read_text(at("again") + shard));
  const auto before = nlohmann::json::parse(read_text(kTinyLlama + "/config.json"));
  EXPECT_EQ(nlohmann::json::parse(read_text(at("hf") + "/config.json")), before);
  EXPECT_THAT(run("convert export " + at("run") + " --out " + at("other") + " --names released", 2).error,
              HasSubstr("model_type llama: `--names released` needs a second spelling of tensor names"));
}

TEST_F(LlamaCommands, TrainsOnRanksAsAlone) {
  const std::string common = "train " + kLlamaRecipe + " --train.steps=2 --train.threads=1 --train.output=";
  run(common + at("one"));
  run(common + at("two") + " --ranks 2 --parallel.tp=2");
  const auto loss = [&](const std::string& folder) {
    const std::string lines = read_text(at(folder) + "/metrics.jsonl");
    return nlohmann::json::parse(lines.substr(0, lines.find('\n'))).at("loss").get<double>();
  };
  EXPECT_NEAR(loss("one"), loss("two"), 1e-5 * loss("one"));
}

TEST_F(LlamaCommands, ArePlannedInspectedAndRefusedInWords) {
  const auto plan =
      nlohmann::json::parse(run("plan " + kLlamaRecipe + " --ranks 8 --parallel.tp=2 --parallel.cp=2 --json").output);
  const int64_t layer = 2 * 60 * 72 + 2 * 60 * 24 + 3 * 60 * 101 + 2 * 60;
  EXPECT_EQ(plan.at("parameters").at("total"), 4 * layer + 2 * 2051 * 60 + 60);
  EXPECT_EQ(plan.at("parameters").at("by_part").at("layers"), 4 * layer);
  EXPECT_THAT(run("inspect model " + kLlamaRecipe).output,
              AllOf(HasSubstr("6 heads of 12 over 2 key heads"), HasSubstr("total")));
  EXPECT_THAT(run("plan " + kLlamaRecipe + " --ranks 3 --parallel.tp=3", 2).error,
              HasSubstr("parallel.tp 3 does not divide num_key_value_heads 2; accepted: 1, 2"));
  EXPECT_THAT(run("eval " + kLlamaRecipe, 2).error,
              HasSubstr("model_type llama: `eval` needs cached generation, which this family does not have yet"));
  EXPECT_THAT(run("crop " + kTinyLlama + " --out " + at("small"), 2).error, HasSubstr("model_type llama: `crop` needs"));
}

}  // namespace
}  // namespace hyperparallel
