// `hyperparallel crop`: the released model, small enough to train here.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "program.h"

namespace hyperparallel {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;

const std::string kReleased = "tests/golden/released-config.json";

json read_json(const fs::path& path) {
  return json::parse(read_text(path));
}

// The last line of a crop's output tells the totals.
int64_t total_after(const std::string& output) {
  return std::stoll(output.substr(output.find_last_of(' ')));
}

TEST(Crop, KeepsDepthRolesAndLengthAndWhatFollowsKeepsItsProportion) {
  const TemporaryFolder folder;
  const ProgramResult result = run_program("crop " + kReleased + " --hidden 1280 --experts 16 --out " + folder.path().string());
  ASSERT_EQ(result.code, 0) << result.error;
  const json before = read_json(fs::path(HP_SOURCE_DIR) / kReleased), after = read_json(folder.path() / "config.json");
  const json &text = after.at("text_config"), &old = before.at("text_config");
  for (const char* key : {"num_hidden_layers", "compress_ratios", "kv_source_layer_ids", "index_source_layer_ids",
                          "candidate_source_layer_id", "engram_layer_ids", "max_position_embeddings", "rope_scaling", "hc_mult",
                          "head_dim", "o_groups", "index_head_dim", "vocab_size", "num_nextn_predict_layers"})
    EXPECT_EQ(text.at(key), old.at(key)) << key;
  const std::map<std::string, int64_t> quarter{
      {"hidden_size", 1280}, {"moe_intermediate_size", 576}, {"num_attention_heads", 16}, {"q_lora_rank", 320},
      {"o_lora_rank", 256},  {"index_n_heads", 8},           {"engram_head_dim", 64},     {"dspark_markov_rank", 64}};
  for (const auto& [key, size] : quarter) EXPECT_EQ(text.at(key), size) << key;
  EXPECT_EQ(text.at("n_routed_experts"), 16);
  EXPECT_EQ(text.at("dspark_n_routed_experts"), 5);
  EXPECT_EQ(text.at("num_experts_per_tok"), 6);
  EXPECT_NEAR(text.at("engram_num_embeddings")[0].get<double>(), 384006168 / 4.0, 20000);
  EXPECT_EQ(after.at("vision_config").at("hidden_size"), 256);
  EXPECT_EQ(after.at("vision_config").at("num_attention_heads"), 4);
  EXPECT_EQ(after.at("vision_config").at("num_hidden_layers"), 32);
  EXPECT_THAT(result.output, testing::AllOf(HasSubstr("hidden_size"), HasSubstr("763205315794")));
}

TEST(Crop, WhatItWritesTrainsAndHasAsManyParametersAsItSays) {
  const TemporaryFolder folder;
  const std::string out = (folder.path() / "model").string();
  const ProgramResult cropped = run_program(
      "crop configs/released --hidden 24 --head-dim 16 --heads 4 --experts 6 --vocab 2051 --image-token 2047 "
      "--engram-rows 5000 --vision-layers 2 --window 16 --index-topk 8 --out " +
      out);
  ASSERT_EQ(cropped.code, 0) << cropped.error;
  const std::string yaml = (folder.path() / "run.yaml").string(), data = std::string(HP_SOURCE_DIR) + "/tests/golden/data/";
  std::ofstream(yaml) << "model: {config: model/config.json}\n"
                         "data:\n  tokenizer: "
                      << data << "tiny-tokenizer/tokenizer.json\n  train: [" << HP_SOURCE_DIR
                      << "/configs/tiny/train.jsonl]\n  seq_len: 640\n  supervise: all\n"
                         "optimizer: {lr: 1e-3}\n"
                         "train: {steps: 1, local_batch_size: 1, global_batch_size: 1, threads: 1, output: run}\n"
                         "validation: {interval: 0}\ncheckpoint: {interval: 0}\n";
  const ProgramResult plan = run_program("plan " + yaml + " --json");
  ASSERT_EQ(plan.code, 0) << plan.error;
  EXPECT_EQ(json::parse(plan.output).at("parameters").at("total"), total_after(cropped.output)) << cropped.output;
  const ProgramResult trained = run_program("train " + yaml);
  ASSERT_EQ(trained.code, 0) << trained.error;
  EXPECT_THAT(trained.output + trained.error, HasSubstr("step: 1"));
}

TEST(Crop, ASizeThatCannotBeIsRefusedByKeyWithWhatIsAccepted) {
  const TemporaryFolder folder;
  const ProgramResult result = run_program("crop " + kReleased +
                                           " --hidden 6000 --heads 12 --o-groups 8 --head-dim 0 --engram-rows 10 "
                                           "--vision-hidden 30 --out " +
                                           (folder.path() / "out").string());
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.error, testing::AllOf(HasSubstr("hidden_size: found 6000, accepted: 1 to 5120"),
                                           HasSubstr("head_dim: found 0, accepted: 2 to 512"),
                                           HasSubstr("engram_num_embeddings: found 10, accepted: ")));
  EXPECT_FALSE(fs::exists(folder.path() / "out"));
  const ProgramResult rules =
      run_program("crop " + kReleased + " --heads 12 --o-groups 8 --vision-hidden 30 --out " + (folder.path() / "out").string());
  EXPECT_EQ(rules.code, 2);
  EXPECT_THAT(rules.error, testing::AllOf(HasSubstr("o_groups: 8 does not divide num_attention_heads 12"),
                                          HasSubstr("vision_config.hidden_size: 30 is not a multiple of 4")));
}

}  // namespace
}  // namespace hyperparallel
