#include "checkpoint/convert.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "support/scratch.h"
#include "support/unsynced_system.h"

namespace hyperparallel::checkpoint {
namespace {

class Convert : public testing::Test {
 protected:
  // A training checkpoint with a tied head: parameters in two pieces, optimizer state, a count.
  Checkpoint training_checkpoint(const Documents& documents) {
    CheckpointStore store(scratch_ / "run");
    store.save({3,
                {{"model.embed.weight", {3, 2}, {0, 0}, embedding_.slice(0, 0, 1)},
                 {"model.embed.weight", {3, 2}, {1, 0}, embedding_.slice(0, 1, 3)},
                 {"model.layers.0.ffn.experts.w1.weight", {2, 2, 3}, {0, 0, 0}, experts_},
                 {"model.layers.0.ffn.gate.bias", {2}, {0}, at::full({2}, 0.1)},
                 {"optimizer/exp_avg/model.embed.weight", {3, 2}, {0, 0}, embedding_}},
                documents});
    return store.open(3);
  }

  UnsyncedSystem system_;
  file::ScopedSystem scoped_{system_};
  Scratch scratch_;
  at::Tensor embedding_ = at::arange(6).reshape({3, 2}).to(at::kFloat) / 3;
  at::Tensor experts_ = at::arange(12).reshape({2, 2, 3}).to(at::kFloat);
};

TEST_F(Convert, OnlyTheModelOfATrainingCheckpointIsExported) {
  Checkpoint source = training_checkpoint(
      {{"config.json", R"({"tie_word_embeddings": true})"}, {"tokenizer.json", "ours"}, {"loader.json", "{}"}});
  ExportOptions options;
  options.companions = {{"tokenizer_config.json", "given"}};
  export_checkpoint(source, scratch_ / "out", options);

  SafetensorsReader file(scratch_ / "out/model.safetensors");
  std::vector<std::string> names;
  for (const TensorInfo& info : file.tensors()) names.push_back(info.name + " " + info.dtype);
  EXPECT_THAT(names,
              testing::UnorderedElementsAre("model.embed.weight BF16", "model.layers.0.ffn.experts.0.w1.weight BF16",
                                            "model.layers.0.ffn.experts.1.w1.weight BF16", "model.layers.0.ffn.gate.bias F32"));
  EXPECT_TRUE(at::equal(file.tensor("model.embed.weight"), embedding_.to(at::kBFloat16)));
  EXPECT_TRUE(at::equal(HfFolder(scratch_ / "out").load("model.layers.0.ffn.experts.w1.weight"), experts_.to(at::kBFloat16)));
  EXPECT_EQ(file::read(scratch_ / "out/tokenizer.json"), "ours");
  EXPECT_EQ(file::read(scratch_ / "out/tokenizer_config.json"), "given");
  EXPECT_FALSE(std::filesystem::exists(scratch_ / "out/loader.json"));
}

TEST_F(Convert, TheExportedConfigurationHasNoDraftLayers) {
  const nlohmann::json text = {{"num_hidden_layers", 3},
                               {"num_nextn_predict_layers", 2},
                               {"compress_ratios", {0, 2, 1, 0, 0}},
                               {"dtype", "float32"},
                               {"torch_dtype", "float32"}};
  for (const bool composite : {true, false}) {
    nlohmann::json config = composite ? nlohmann::json{{"text_config", text}} : text;
    config["tie_word_embeddings"] = true;
    const std::string out = scratch_ / (composite ? "composite" : "flat");
    export_checkpoint(training_checkpoint({{"config.json", config.dump()}}), out, {});
    const auto written = nlohmann::json::parse(file::read(out + "/config.json"));
    const auto& written_text = composite ? written.at("text_config") : written;
    EXPECT_EQ(written_text.at("num_nextn_predict_layers"), 0);
    EXPECT_EQ(written_text.at("compress_ratios"), nlohmann::json({0, 2, 1}));
    EXPECT_EQ(written.contains("num_nextn_predict_layers"), !composite);
    EXPECT_EQ(written.at("dtype"), "bfloat16");
    EXPECT_EQ(written_text.at("dtype"), "bfloat16");
    EXPECT_FALSE(written_text.contains("torch_dtype"));
  }
}

TEST_F(Convert, ACheckpointWithoutModelConfigurationIsRefused) {
  EXPECT_THROW(export_checkpoint(training_checkpoint({}), scratch_ / "out", {}), CheckpointError);
}

TEST_F(Convert, AnImportedTiedModelStaysTied) {
  export_checkpoint(training_checkpoint({{"config.json", R"({"tie_word_embeddings": true})"}}), scratch_ / "out", {});
  CheckpointStore store(scratch_ / "imported");
  import_hf(HfFolder(scratch_ / "out"), store);
  Checkpoint imported = store.open(0);
  EXPECT_FALSE(imported.has("lm_head.weight"));
  EXPECT_TRUE(imported.has("model.embed.weight"));
}

}  // namespace
}  // namespace hyperparallel::checkpoint
