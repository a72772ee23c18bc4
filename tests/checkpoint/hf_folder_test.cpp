#include "checkpoint/hf_folder.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "support/faulty_system.h"
#include "support/scratch.h"
#include "support/unsynced_system.h"

namespace hyperparallel::checkpoint {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

const fs::path kModel = fs::path(HP_SOURCE_DIR) / "tests/golden/model/vlm-tiny";

class HfFolderTest : public testing::Test {
 protected:
  // A folder as other tools write it: the golden weights in one file.
  fs::path golden_folder() {
    fs::path folder = scratch_ / "golden";
    fs::create_directory(folder);
    fs::copy(kModel / "config.json", folder / "config.json");
    fs::copy(kModel / "weights.safetensors", folder / "model.safetensors");
    return folder;
  }

  // A folder of one file with these tensors.
  fs::path folder_of(const std::vector<NamedTensor>& tensors, const std::string& config = "{}") {
    fs::path folder = scratch_ / fmt::format("made-{}", made_++);
    fs::create_directory(folder);
    file::write(folder / "config.json", config);
    write_safetensors(folder / "model.safetensors", tensors);
    return folder;
  }

  static HfExport export_of(const HfFolder& source) {
    HfExport request;
    for (const auto& [name, spec] : source.tensors()) request.tensors.push_back(spec);
    request.load = [&](const std::string& name, const auto& offset, const auto& size) {
      return source.load_box(name, offset, size);
    };
    request.config = source.config();
    return request;
  }

  static std::string fault(const fs::path& folder) {
    try {
      HfFolder opened(folder);
    } catch (const CheckpointError& error) {
      return error.what();
    }
    return "accepted";
  }

  UnsyncedSystem system_;
  file::ScopedSystem scoped_{system_};
  Scratch scratch_;
  int made_ = 0;
};

TEST_F(HfFolderTest, GoldenWeightsLoadByOurNames) {
  HfFolder folder(golden_folder());
  SafetensorsReader file(kModel / "weights.safetensors");
  EXPECT_TRUE(at::equal(folder.load("model.embed.weight"), file.tensor("model.embed.weight")));
  at::Tensor stack = folder.load("model.layers.1.ffn.experts.w2.weight");
  EXPECT_EQ(stack.sizes(), (std::vector<int64_t>{8, 40, 16}));
  for (int64_t expert = 0; expert < 8; ++expert)
    EXPECT_TRUE(at::equal(stack[expert], file.tensor(fmt::format("model.layers.1.ffn.experts.{}.w2.weight", expert))));
  EXPECT_TRUE(at::equal(folder.load_box("model.layers.1.ffn.experts.w2.weight", {3, 1, 2}, {2, 30, 4}),
                        stack.slice(0, 3, 5).slice(1, 1, 31).slice(2, 2, 6)));
  EXPECT_FALSE(folder.has("model.layers.0.engram.embed.scale"));
}

TEST_F(HfFolderTest, ExportAndImportGiveTheSameBitsInBothSpellingsAndAnyShardSize) {
  HfFolder source(golden_folder());
  for (Spelling spelling : {Spelling::kTransformers, Spelling::kReleased}) {
    for (int64_t max_bytes : {int64_t{1}, int64_t{50'000}, int64_t{1} << 30}) {
      HfExport request = export_of(source);
      request.spelling = spelling;
      request.max_shard_bytes = max_bytes;
      request.companions = {{"tokenizer.json", "{}"}};
      fs::path target = scratch_ / fmt::format("out-{}-{}", static_cast<int>(spelling), max_bytes);
      export_hf(target, request);

      HfFolder read(target);
      EXPECT_EQ(read.spelling(), spelling);
      EXPECT_EQ(read.tensors().size(), source.tensors().size());
      for (const auto& [name, spec] : source.tensors()) EXPECT_TRUE(at::equal(read.load(name), source.load(name))) << name;
      EXPECT_EQ(read.config(), source.config());
      EXPECT_EQ(file::read(target / "tokenizer.json"), "{}");
      EXPECT_FALSE(fs::exists(target / "INPROGRESS"));
    }
  }
}

TEST_F(HfFolderTest, IndexHoldsTensorBytesAndParametersAndOneShardHasNone) {
  HfExport request;
  request.tensors = {{"a", at::kFloat, {3}}, {"b", at::kBFloat16, {2, 2}}, {"c", at::kFloat, {5}}};
  request.load = [](const std::string&, const auto&, const std::vector<int64_t>& size) { return at::ones(size); };
  request.config = "{}";
  request.max_shard_bytes = 20;
  export_hf(scratch_ / "two", request);
  json index = json::parse(file::read(scratch_ / "two/model.safetensors.index.json"));
  EXPECT_EQ(index["metadata"]["total_size"], 12 + 8 + 20);
  EXPECT_EQ(index["metadata"]["total_parameters"], 12);
  EXPECT_EQ(index["weight_map"], (json{{"a", "model-00001-of-00002.safetensors"},
                                       {"b", "model-00001-of-00002.safetensors"},
                                       {"c", "model-00002-of-00002.safetensors"}}));
  EXPECT_EQ(HfFolder(scratch_ / "two").load("b").scalar_type(), at::kBFloat16);
  request.max_shard_bytes = 1000;
  export_hf(scratch_ / "one", request);
  EXPECT_TRUE(fs::exists(scratch_ / "one/model.safetensors"));
  EXPECT_FALSE(fs::exists(scratch_ / "one/model.safetensors.index.json"));
}

TEST_F(HfFolderTest, ReleasedSpellingIsUnderstood) {
  HfFolder folder(folder_of(
      {{"embed.weight", at::ones({2, 2})}, {"head.weight", at::zeros({2, 2})}, {"layers.0.attn.wkv.weight", at::ones({1})}}));
  EXPECT_EQ(folder.spelling(), Spelling::kReleased);
  EXPECT_TRUE(folder.has("model.embed.weight") && folder.has("lm_head.weight") && folder.has("model.layers.0.attn.wkv.weight"));
}

TEST_F(HfFolderTest, TiedHeadIsRebuiltFromTheEmbeddingAndNeverListed) {
  const std::string tied = R"({"tie_word_embeddings": true})";
  at::Tensor embedding = at::arange(6).reshape({3, 2}).to(at::kFloat);
  HfFolder folder(folder_of({{"model.embed.weight", embedding}}, tied));
  EXPECT_TRUE(at::equal(folder.load("lm_head.weight"), embedding));

  HfExport request = export_of(folder);
  request.max_shard_bytes = 1;
  export_hf(scratch_ / "out", request);
  SafetensorsReader file(scratch_ / "out/model.safetensors");
  EXPECT_EQ(file.tensors().size(), 1);
  EXPECT_TRUE(at::equal(HfFolder(scratch_ / "out").load("lm_head.weight"), embedding));

  EXPECT_THAT(fault(folder_of({{"model.embed.weight", embedding}, {"lm_head.weight", embedding + 1}}, tied)),
              HasSubstr("tie_word_embeddings"));
  EXPECT_EQ(fault(folder_of({{"model.embed.weight", embedding}, {"lm_head.weight", embedding}}, tied)), "accepted");
  HfFolder untied(folder_of({{"model.embed.weight", embedding}}, R"({"text_config": {"tie_word_embeddings": false}})"));
  EXPECT_FALSE(untied.has("lm_head.weight"));
  EXPECT_THROW(export_hf(scratch_ / "untied", export_of(untied)), CheckpointError);
}

TEST_F(HfFolderTest, DraftLayersAreTensorsAndScalesBesideFloatTablesAreSkipped) {
  HfFolder folder(folder_of({{"mtp.0.attn.wkv.weight", at::ones({1})},
                             {"layers.0.engram.embed.scale", at::ones({1})},
                             {"layers.0.engram.embed.weight", at::ones({1})}}));
  EXPECT_EQ(folder.tensors().size(), 2);
  EXPECT_TRUE(folder.has("mtp.0.attn.wkv.weight"));
}

TEST_F(HfFolderTest, QuantisedWeightsAreRefusedByName) {
  EXPECT_THAT(fault(folder_of({{"layers.0.ffn.experts.0.w1.weight", at::ones({2}, at::kChar)}})),
              AllOf(HasSubstr("layers.0.ffn.experts.0.w1.weight"), HasSubstr("I8"), HasSubstr("quantised")));
  const std::string header = R"({"layers.0.attn.wkv.weight":{"dtype":"F8_E4M3","shape":[4],"data_offsets":[0,4]}})";
  fs::path folder = folder_of({});
  uint64_t length = header.size();
  file::write(folder / "model.safetensors", std::string(reinterpret_cast<const char*>(&length), 8) + header + "1234");
  EXPECT_THAT(fault(folder), AllOf(HasSubstr("layers.0.attn.wkv.weight"), HasSubstr("F8_E4M3")));
}

TEST_F(HfFolderTest, ContradictionsOfNamesAreRefused) {
  at::Tensor one = at::ones({1});
  EXPECT_THAT(fault(folder_of({{"embed.weight", one}, {"model.embed.weight", one}})), HasSubstr("both spellings"));
  EXPECT_THAT(fault(folder_of({{"layers.0.ffn.experts.0.w1.weight", one}, {"model.layers.0.ffn.experts.0.w1.weight", one}})),
              HasSubstr("both spellings"));
  EXPECT_THAT(fault(folder_of({{"layers.0.ffn.experts.0.w1.weight", one}, {"layers.0.ffn.experts.2.w1.weight", one}})),
              HasSubstr("experts.1.w1.weight` is missing"));
  EXPECT_THAT(fault(folder_of({{"layers.0.ffn.experts.0.w1.weight", one}, {"layers.0.ffn.experts.1.w1.weight", at::ones({2})}})),
              HasSubstr("other experts"));
  EXPECT_THAT(fault(folder_of({{"layers.0.ffn.experts.999999999999.w1.weight", one}})), HasSubstr("beyond"));
}

TEST_F(HfFolderTest, IndexAndFilesMustAgreeBothWays) {
  fs::path folder = folder_of({});
  fs::remove(folder / "model.safetensors");
  EXPECT_THAT(fault(folder), HasSubstr("holds no weights"));
  write_safetensors(folder / "one.safetensors", {{"a", at::ones({1})}, {"b", at::ones({1})}});
  write_safetensors(folder / "stray.safetensors", {{"c", at::ones({1})}});
  auto with_index = [&](const json& weight_map) {
    file::write(folder / "model.safetensors.index.json", json{{"weight_map", weight_map}}.dump());
    return fault(folder);
  };
  EXPECT_EQ(with_index({{"a", "one.safetensors"}, {"b", "one.safetensors"}}), "accepted");
  EXPECT_FALSE(HfFolder(folder).has("c"));  // a file that the index does not name is not read
  EXPECT_THAT(with_index({{"a", "one.safetensors"}}), AllOf(HasSubstr("`b`"), HasSubstr("nowhere")));
  EXPECT_THAT(with_index({{"a", "one.safetensors"}, {"b", "one.safetensors"}, {"lm_head.weight", "one.safetensors"}}),
              AllOf(HasSubstr("`lm_head.weight`"), HasSubstr("does not hold it")));
  EXPECT_THAT(with_index({{"a", "two.safetensors"}}), AllOf(HasSubstr("two.safetensors"), HasSubstr("missing")));
  EXPECT_THAT(with_index({{"a", "../made-0/one.safetensors"}}), HasSubstr("no plain file name"));
  EXPECT_THAT(with_index({{"a", 3}}), HasSubstr("`a`"));
  EXPECT_THAT(with_index(3), HasSubstr("weight_map"));
  file::write(folder / "model.safetensors.index.json", "{");
  EXPECT_THAT(fault(folder), HasSubstr("no JSON object"));
}

TEST_F(HfFolderTest, ExportNeverReplacesAFolder) {
  HfFolder source(folder_of({{"a", at::ones({1})}}));
  fs::create_directory(scratch_ / "mine");
  EXPECT_THROW(export_hf(scratch_ / "mine", export_of(source)), CheckpointError);
  fs::create_directory(scratch_ / "next.inprogress");
  file::write(scratch_ / "next.inprogress/mine.txt", "x");
  EXPECT_THROW(export_hf(scratch_ / "next/", export_of(source)), CheckpointError);
  EXPECT_EQ(file::read(scratch_ / "next.inprogress/mine.txt"), "x");
}

TEST(HfExportFaults, ACrashAtAnyFileCallLeavesNoFolderOrAWholeOne) {
  HfExport request;
  request.tensors = {{"a", at::kFloat, {3}}, {"b", at::kFloat, {4}}};
  request.load = [](const std::string&, const auto&, const std::vector<int64_t>& size) { return at::ones(size); };
  request.config = "{}";
  request.max_shard_bytes = 16;
  for (int call = 1;; ++call) {
    SCOPED_TRACE(call);
    Scratch scratch;
    FaultySystem system(scratch.path());
    file::ScopedSystem scoped(system);
    system.crash_at(call);
    try {
      export_hf(scratch / "out", request);
    } catch (const CheckpointError&) {
    }
    bool over = system.count() < call;
    system.recover(Survives::kNothing);
    if (!fs::exists(scratch / "out")) export_hf(scratch / "out", request);
    EXPECT_TRUE(at::equal(HfFolder(scratch / "out").load("b"), at::ones({4})));
    EXPECT_FALSE(fs::exists(scratch / "out.inprogress"));
    if (over) break;
  }
}

}  // namespace
}  // namespace hyperparallel::checkpoint
