// `inspect checkpoint` and `convert`, driven as a user does.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "cli/program.h"

namespace hyperparallel {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

// A Hugging Face folder of the golden multimodal model, and the names of what is made of it.
class CheckpointCommands : public testing::Test {
 protected:
  CheckpointCommands() {
    const fs::path model = fs::path(HP_SOURCE_DIR) / "tests/golden/model/vlm-tiny";
    fs::create_directory(at("hf"));
    fs::copy(model / "config.json", at("hf") + "/config.json");
    fs::copy(model / "weights.safetensors", at("hf") + "/model.safetensors");
    std::ofstream(at("hf") + "/tokenizer.json") << "{}";
  }

  std::string at(const std::string& name) const { return (folder_.path() / name).string(); }
  static ProgramResult run(const std::string& arguments) {
    ProgramResult result = run_program(arguments);
    EXPECT_EQ(result.code, 0) << arguments << "\n" << result.error;
    return result;
  }
  static void flip(const std::string& file, size_t from_end) {
    std::string bytes = read_text(file);
    bytes[bytes.size() - from_end] ^= 1;
    std::ofstream(file, std::ios::binary) << bytes;
  }

  TemporaryFolder folder_;
};

TEST_F(CheckpointCommands, ImportedAndExportedWeightsAreTheSameBits) {
  run("convert import " + at("hf") + " --out " + at("run"));
  run("convert export " + at("run") + " --out " + at("out") + " --dtype float32 --names released --shard-gb 0.0002");
  run("convert import " + at("out") + " --out " + at("again"));
  const std::string shard = "/checkpoints/step-00000000/rank-00000.safetensors";
  EXPECT_NE(read_text(at("run") + shard), "");
  EXPECT_EQ(read_text(at("run") + shard), read_text(at("again") + shard));
  EXPECT_EQ(read_text(at("out") + "/tokenizer.json"), "{}");
  const auto index = nlohmann::json::parse(read_text(at("out") + "/model.safetensors.index.json"));
  EXPECT_TRUE(index["weight_map"].contains("head.weight"));
  EXPECT_TRUE(index["weight_map"].contains("layers.0.ffn.experts.7.w2.weight"));
}

TEST_F(CheckpointCommands, Bfloat16ExportSaysSoAndKeepsWhatMustStayFloat32) {
  run("convert import " + at("hf") + " --out " + at("run"));
  run("convert export " + at("run") + " --out " + at("out"));
  EXPECT_EQ(nlohmann::json::parse(read_text(at("out") + "/config.json"))["dtype"], "bfloat16");
  const ProgramResult shown = run("inspect checkpoint --all " + at("out"));
  EXPECT_THAT(shown.output, testing::ContainsRegex("model.layers.0.attn.wkv.weight +1 +BF16"));
  EXPECT_THAT(shown.output, testing::ContainsRegex("model.layers.0.hc_attn_fn +1 +F32"));
}

TEST_F(CheckpointCommands, InspectShowsEveryKind) {
  run("convert import " + at("hf") + " --out " + at("run"));
  EXPECT_THAT(run("inspect checkpoint " + at("hf")).output,
              AllOf(HasSubstr("deepseek_v41, with vision"), HasSubstr("hidden_size 40"), HasSubstr("total        ")));
  EXPECT_THAT(run("inspect checkpoint --verify " + at("run")).output,
              AllOf(HasSubstr("step 0"), HasSubstr("config.json, tokenizer.json"), HasSubstr("every checksum holds"),
                    testing::ContainsRegex("model.layers.[*].ffn.experts.w1.weight +6 +F32 +122.9 KB +.8, 16, 40.")));
  EXPECT_THAT(run("inspect checkpoint --verify " + at("hf") + "/model.safetensors").output, HasSubstr("every value is finite"));
}

TEST_F(CheckpointCommands, DamageIsFoundWithCode4AndNamed) {
  run("convert import " + at("hf") + " --out " + at("run"));
  const std::string shard = at("run") + "/checkpoints/step-00000000/rank-00000.safetensors";
  flip(shard, 1);
  for (const std::string command : {"inspect checkpoint --verify ", "convert export --out never "}) {
    const ProgramResult result = run_program(command + at("run"));
    EXPECT_EQ(result.code, 4);
    EXPECT_THAT(result.error, AllOf(HasSubstr(shard), HasSubstr("tensor `")));
  }
  EXPECT_EQ(run_program("inspect checkpoint " + at("nowhere")).code, 4);
  EXPECT_EQ(run_program("inspect checkpoint " + folder_.path().string()).code, 4);
}

TEST_F(CheckpointCommands, AFolderWhoseTensorsAreNotTheModelsIsRefusedWithAllFaultsAtOnce) {
  auto config = nlohmann::json::parse(read_text(at("hf") + "/config.json"));
  auto& text = config.at("text_config");
  text["n_routed_experts"] = 16;
  text["num_hidden_layers"] = 7;
  text["compress_ratios"].push_back(1);
  config.at("vision_config")["num_hidden_layers"] = 1;
  std::ofstream(at("hf") + "/config.json") << config;
  const ProgramResult result = run_program("convert import " + at("hf") + " --out " + at("run"));
  EXPECT_EQ(result.code, 4);
  EXPECT_THAT(result.error, AllOf(HasSubstr(at("hf")), HasSubstr("missing:\n    model.layers.6."),
                                  HasSubstr("unexpected:\n    vision.blocks.1."),
                                  HasSubstr("model.layers.0.ffn.experts.w1.weight [8, 16, 40], the model needs [16, 16, 40]"),
                                  HasSubstr("and "), HasSubstr(" more")));
  EXPECT_FALSE(fs::exists(at("run"))) << "nothing is written";
}

TEST_F(CheckpointCommands, NothingThatExistsIsReplaced) {
  run("convert import " + at("hf") + " --out " + at("run"));
  EXPECT_EQ(run_program("convert import " + at("hf") + " --out " + at("run")).code, 4);
  const ProgramResult result = run_program("convert export " + at("run") + " --out " + at("hf"));
  EXPECT_EQ(result.code, 4);
  EXPECT_THAT(result.error, HasSubstr("exists already"));
}

}  // namespace
}  // namespace hyperparallel
