#include "models/deepseek_v41/config.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "base/error.h"

namespace hyperparallel::models::deepseek_v41 {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

const std::string kGolden = std::string(HP_SOURCE_DIR) + "/tests/golden/";

std::vector<std::string> golden_configs() {
  std::vector<std::string> paths = {kGolden + "released-config.json"};
  for (const auto& entry : fs::recursive_directory_iterator(kGolden)) {
    if (entry.path().filename() == "config.json") paths.push_back(entry.path());
  }
  return paths;
}

ModelConfig parse_text(const std::string& text, Problems& problems, ParseOptions options = {}) {
  yaml::Node node = yaml::parse_yaml(text, "config.json", problems);
  return parse_model_config(node, problems, yaml::MapReader::Unknown::kError, options);
}

Json golden_config(const std::string& name) {
  return Json::parse(std::ifstream(kGolden + name));
}

// The errors after `change` was made to the multimodal tiny config.
template <class Change>
std::string errors_after(Change change, const std::string& name = "model/vlm-tiny/config.json") {
  Json json = golden_config(name);
  change(json);
  Problems problems;
  parse_text(json.dump(1), problems);
  return fmt::format("{}", fmt::join(problems.errors(), "\n"));
}

TEST(ModelConfig, EveryGoldenConfigLoadsWithoutWarningAndSurvivesWriting) {
  const auto paths = golden_configs();
  EXPECT_GT(paths.size(), 10);
  for (const std::string& path : paths) {
    SCOPED_TRACE(path);
    const ParseOptions options{.allow_vision_only = true};
    Problems problems;
    yaml::Node node = yaml::read_yaml_file(path, problems);
    ModelConfig config = parse_model_config(node, problems, yaml::MapReader::Unknown::kError, options);
    EXPECT_THAT(problems.errors(), ElementsAre());
    EXPECT_EQ(parse_model_config(path, options), config);
    if (config.text.num_hidden_layers == 0) continue;  // a vision-only file is not what the writer is for
    EXPECT_EQ(parse_text(to_hf_json(config).dump(1), problems), config);
    EXPECT_EQ(parse_text(to_hf_json(config).dump(), problems), config);
    EXPECT_THAT(problems.errors(), ElementsAre());
  }
}

TEST(ModelConfig, ReleasedFileHasItsPublishedValues) {
  ModelConfig config = parse_model_config(kGolden + "released-config.json");
  const TextConfig& text = config.text;
  EXPECT_EQ(config.dtype, "bfloat16");
  EXPECT_EQ(config.image_token_id, 129264);
  EXPECT_EQ(text.hidden_size, 5120);
  EXPECT_EQ(text.rms_norm_eps, 1e-20);
  EXPECT_EQ(text.swiglu_limit, 10.0);
  EXPECT_EQ(text.rope_main, (RopeParameters{.theta = 10000}));
  EXPECT_EQ(text.rope_compress, (RopeParameters{.theta = 160000, .yarn = true, .factor = 16}));
  EXPECT_EQ(text.compress_ratios.size(), 43u);
  EXPECT_EQ(text.candidate_source_layer_id, 20);
  EXPECT_EQ(text.engram_columns(), 24);
  EXPECT_EQ(config.vision->min_pixels, 544 * 544);
  EXPECT_FALSE(config.vision->max_wh_ratio);
}

TEST(ModelConfig, LayerRolesFollowTheNearestSources) {
  TextConfig text = parse_model_config(kGolden + "released-config.json").text;
  EXPECT_EQ(text.mode(0), LayerMode::kWindow);
  EXPECT_EQ(text.mode(2), LayerMode::kFull);
  EXPECT_EQ(text.mode(3), LayerMode::kReuse);
  EXPECT_EQ(text.mode(24), LayerMode::kReindex);
  EXPECT_EQ(text.kv_source(19), 14);
  EXPECT_EQ(text.kv_source(39), 20);
  EXPECT_EQ(text.index_source(39), 36);
  EXPECT_EQ(text.index_source(24), 24);
  EXPECT_EQ(text.engram_index(14), 1);
  EXPECT_EQ(text.engram_index(13), std::nullopt);
  EXPECT_THROW(text.kv_source(0), InternalError);
}

TEST(ModelConfig, VisionOnlyFileNeedsTheOption) {
  const std::string path = kGolden + "model/vision-tiny/config.json";
  EXPECT_THROW(parse_model_config(path), ConfigError);
  ModelConfig config = parse_model_config(path, {.allow_vision_only = true});
  EXPECT_EQ(config.text.hidden_size, 40);
  EXPECT_EQ(config.vision->hidden_size, 48);
}

TEST(ModelConfig, CandidateSourceDefaultsToTheLastKvSource) {
  const auto candidate = [](auto change) {
    Json json = golden_config("model/vlm-tiny/config.json");
    change(json["text_config"]);
    Problems problems;
    int64_t id = parse_text(json.dump(), problems).text.candidate_source_layer_id;
    EXPECT_THAT(problems.errors(), ElementsAre());
    return id;
  };
  EXPECT_EQ(candidate([](Json& text) { text.erase("candidate_source_layer_id"); }), 3);
  EXPECT_EQ(candidate([](Json& text) { text["candidate_source_layer_id"] = nullptr; }), 3);
  EXPECT_EQ(candidate([](Json& text) { text["candidate_source_layer_id"] = -7; }), -1);
  EXPECT_THAT(errors_after([](Json& json) { json["text_config"]["candidate_source_layer_id"] = 1; }),
              HasSubstr("candidate_source_layer_id: expected the last KV source 3"));
}

TEST(ModelConfig, RopeParametersWinOverPlainKeys) {
  Json json = golden_config("model/swa-only/config.json");
  json["rope_theta"] = 5.0;
  json["compress_rope_theta"] = 6.0;
  json["rope_scaling"]["factor"] = 7;
  Problems problems;
  TextConfig text = parse_text(json.dump(), problems).text;
  EXPECT_EQ(text.rope_main.theta, 10000);
  EXPECT_EQ(text.rope_compress.theta, 160000);
  EXPECT_EQ(text.rope_compress.factor, 16);
  json["rope_parameters"]["compress"]["rope_type"] = "longrope";
  json["rope_parameters"]["main"]["partial_rotary_factor"] = 0.5;
  parse_text(json.dump(1), problems);
  EXPECT_THAT(fmt::format("{}", fmt::join(problems.errors(), "\n")),
              AllOf(HasSubstr("rope_parameters.compress.rope_type: longrope is not supported"),
                    HasSubstr("rope_parameters.main.partial_rotary_factor: 0.5 contradicts")));
}

TEST(ModelConfig, AScaledMainTableSurvivesWriting) {
  ModelConfig config = parse_model_config(kGolden + "model/swa-only/config.json");
  config.text.rope_main = {.theta = 3, .yarn = true, .factor = 2};
  Problems problems;
  EXPECT_EQ(parse_text(to_hf_json(config).dump(), problems), config);
  EXPECT_THAT(problems.errors(), ElementsAre());
}

TEST(ModelConfig, WhatIsNotComputedIsRefused) {
  const std::pair<const char*, Json> cases[] = {
      {"n_shared_experts", 2},    {"scoring_func", "sigmoid"}, {"topk_method", "greedy"},  {"hidden_act", "gelu"},
      {"num_key_value_heads", 2}, {"attention_bias", true},    {"attention_dropout", 0.1},
  };
  for (const auto& [key, value] : cases) {
    EXPECT_THAT(errors_after([&](Json& json) { json["text_config"][key] = value; }),
                AllOf(HasSubstr(std::string("text_config.") + key), HasSubstr("is not supported, expected")));
  }
  EXPECT_THAT(errors_after([](Json& json) { json["dtype"] = "float16"; }), HasSubstr("float16 is not supported"));
  EXPECT_THAT(errors_after([](Json& json) { json["model_type"] = "llama"; }), HasSubstr("expected deepseek_v41, found llama"));
  EXPECT_THAT(errors_after([](Json& json) { json["text_config"]["rope_scaling"]["rope_type"] = "dynamic"; }),
              HasSubstr("dynamic is not supported"));
  EXPECT_THAT(errors_after([](Json& json) { json["text_config"]["rope_scaling"]["mscale"] = 1.0; }), HasSubstr("unknown key"));
}

TEST(ModelConfig, BrokenRulesBetweenKeysAreNamed) {
  const std::tuple<const char*, Json, const char*> cases[] = {
      {"index_source_layer_ids", {2, 3, 5}, "layer 1 is not in index_source_layer_ids"},
      {"compress_ratios", {2, 2, 2, 1, 1, 1}, "layer 0 has ratio 2 and no KV source"},
      {"compress_ratios", {0, 2, 1, 1, 1, 1}, "layer 2 has ratio 1, but its KV source, layer 1, has ratio 2"},
      {"compress_ratios", {0, 2, 2, 1, 1}, "has 5 entries, expected one for each of 6 layers"},
      {"compress_ratios", {0, 2, 2, 0, 0, 0}, "layer 3 has compress ratio 0 and can be no source"},
      {"kv_source_layer_ids", {3, 1}, "layers must ascend"},
      {"kv_source_layer_ids", {1, 6}, "layer 6 does not exist"},
      {"o_groups", 3, "3 does not divide num_attention_heads 4"},
      {"qk_rope_head_dim", 7, "expected an even number, found 7"},
      {"qk_rope_head_dim", 42, "42 is larger than head_dim 40"},
      {"index_head_dim", 6, "6 is smaller than qk_rope_head_dim 8"},
      {"index_topk", 0, "expected at least 1 since index_source_layer_ids is not empty"},
      {"candidate_block_size", 0, "expected at least 1 since the candidate pool is on"},
      {"num_experts_per_tok", 9, "9 is more than n_routed_experts 8"},
      {"engram_num_embeddings", {228}, "has 1 entries, engram_layer_ids has 2"},
      {"engram_num_embeddings", {228, 383}, "383 rows of layer 4 are fewer than the 384"},
      {"engram_layer_ids", {0, 6}, "layer 6 does not exist"},
      {"engram_pad_id", 128, "128 is outside the vocabulary of 128"},
      {"eos_token_id", 128, "128 is outside the vocabulary of 128"},
      {"vocab_size", 100, "127 is outside the vocabulary of 100"},
  };
  for (const auto& [key, value, message] : cases) {
    SCOPED_TRACE(fmt::format("{} {}", key, value.dump()));
    EXPECT_THAT(errors_after([&, key = key, value = value](Json& json) { json["text_config"][key] = value; }),
                HasSubstr(message));
  }
  EXPECT_THAT(errors_after([](Json& json) { json["vision_config"]["num_attention_heads"] = 4; }),
              HasSubstr("vision_config.hidden_size"));
  EXPECT_THAT(errors_after([](Json& json) { json["text_config"]["eos_token_id"] = 3; }),
              HasSubstr("3 contradicts 1 at the root"));
  EXPECT_THAT(errors_after([](Json& json) { json.erase("image_token_id"); }), HasSubstr("image_token_id: is required"));
}

TEST(ModelConfig, AllMistakesAreReportedAtOnceWithTheirLines) {
  const std::string text = "{\n\"vocab_size\": \"160\",\n\"hidden_size\": -1,\n\"hiden_act\": \"silu\",\n\"head_dim\": 1.5\n}";
  Problems problems;
  parse_text(text, problems);
  const std::string errors = fmt::format("{}", fmt::join(problems.errors(), "\n"));
  EXPECT_THAT(errors, AllOf(HasSubstr("config.json:2: vocab_size: expected a whole number from 1"),
                            HasSubstr("remove the quotes"), HasSubstr("config.json:3: hidden_size: expected a whole number"),
                            HasSubstr("config.json:4: unknown key hiden_act; the nearest known key is hidden_act"),
                            HasSubstr("config.json:5: head_dim"), HasSubstr("config.json:1: num_hidden_layers: is required")));
}

TEST(ModelConfig, UnknownKeysOfAFileAreWarnings) {
  Problems problems;
  Json json = golden_config("model/vlm-tiny/config.json");
  json["some_other_tool"] = 3;
  yaml::Node node = yaml::parse_yaml(json.dump(1), "config.json", problems);
  parse_model_config(node, problems, yaml::MapReader::Unknown::kWarning);
  EXPECT_THAT(problems.errors(), ElementsAre());
  EXPECT_THAT(problems.warnings(), ElementsAre(HasSubstr("unknown key some_other_tool")));
}

TEST(ModelConfig, AMissingFileIsNamed) {
  try {
    parse_model_config("/nowhere/config.json");
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("/nowhere/config.json"));
  }
}

}  // namespace
}  // namespace hyperparallel::models::deepseek_v41
