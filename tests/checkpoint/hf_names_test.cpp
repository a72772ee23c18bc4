#include "checkpoint/hf_names.h"

#include <gmock/gmock.h>

#include "checkpoint/safetensors.h"

namespace hyperparallel::checkpoint {
namespace {

TEST(HfNames, BothSpellingsOfEveryGoldenNameComeBack) {
  int names = 0;
  for (const char* model : {"csa2-engram", "vlm-tiny", "bf16"}) {
    SafetensorsReader reader(std::filesystem::path(HP_SOURCE_DIR) / "tests/golden/model" / model / "weights.safetensors");
    for (const TensorInfo& info : reader.tensors()) {
      const std::string released = to_released(info.name);
      EXPECT_FALSE(released.starts_with("model.")) << info.name;
      EXPECT_EQ(to_transformers(released), info.name);
      EXPECT_EQ(to_transformers(info.name), info.name);
      ++names;
    }
  }
  EXPECT_GT(names, 500);
  EXPECT_EQ(to_released("lm_head.weight"), "head.weight");
  EXPECT_EQ(to_transformers("norm.weight"), "model.norm.weight");
  EXPECT_EQ(to_transformers("vision.norm.weight"), "vision.norm.weight");
  EXPECT_EQ(to_transformers("mtp.0.attn.wkv.weight"), "mtp.0.attn.wkv.weight");
}

TEST(HfNames, ExpertsOfGoldenFilesAreRowsOfThreeStacksALayer) {
  SafetensorsReader reader(std::filesystem::path(HP_SOURCE_DIR) / "tests/golden/model/csa2-engram/weights.safetensors");
  std::map<std::string, int64_t> rows;
  for (const TensorInfo& info : reader.tensors()) {
    auto expert = parse_expert(info.name);
    EXPECT_EQ(expert.has_value(), info.name.find(".experts.") != std::string::npos) << info.name;
    if (!expert) continue;
    EXPECT_EQ(expert_name(expert->own, expert->expert), info.name);
    ++rows[expert->own];
  }
  EXPECT_EQ(rows.size(), 8 * 3);
  for (const auto& [own, count] : rows) EXPECT_EQ(count, 8) << own;
  EXPECT_TRUE(rows.contains("model.layers.3.ffn.experts.w1.weight"));
}

TEST(HfNames, OnlyExpertsAreStacked) {
  EXPECT_FALSE(parse_expert("model.layers.0.ffn.shared_experts.w1.weight"));
  EXPECT_FALSE(parse_expert("model.layers.0.ffn.experts.w1.weight"));
  EXPECT_FALSE(parse_expert("model.layers.0.ffn.experts.01.w1.weight"));
  EXPECT_FALSE(parse_expert("model.layers.0.ffn.experts.-1.w1.weight"));
  EXPECT_FALSE(parse_expert("model.layers.0.ffn.experts.1.w1.scale"));
  EXPECT_FALSE(parse_expert("model.layers.0.ffn.experts.99999999999999999999.w1.weight"));
  EXPECT_TRUE(is_stacked("model.layers.0.ffn.experts.w2.weight"));
  EXPECT_FALSE(is_stacked("model.layers.0.ffn.experts.0.w2.weight"));
  EXPECT_FALSE(is_stacked("model.layers.0.ffn.shared_experts.w2.weight"));
}

TEST(HfNames, Float32NamesAreThoseOfTheGoldenBf16Files) {
  for (const char* model : {"bf16", "bf16-swa"}) {
    SafetensorsReader reader(std::filesystem::path(HP_SOURCE_DIR) / "tests/golden/model" / model / "weights.safetensors");
    for (const TensorInfo& info : reader.tensors()) EXPECT_EQ(is_float32(info.name), info.dtype == "F32") << info.name;
  }
}

}  // namespace
}  // namespace hyperparallel::checkpoint
