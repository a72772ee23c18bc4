#include "data/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <thread>

#include "base/error.h"
#include "support/test_data.h"

namespace hyperparallel::data {
namespace {

using ::hyperparallel::test::fetched;
using ::hyperparallel::test::golden;
using ::hyperparallel::test::read_file;
using ::hyperparallel::test::read_json_lines;
using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

const Tokenizer& v41() {
  static const Tokenizer tokenizer = Tokenizer::load(fetched("tokenizer-v41.json"));
  return tokenizer;
}

const Tokenizer& tiny() {
  static const Tokenizer tokenizer = Tokenizer::load(golden("data/tiny-tokenizer/tokenizer.json"));
  return tokenizer;
}

// Lines of kind unicode-recent use characters younger than some Unicode tables: told, not failed.
void expect_equal_to_lines(const Tokenizer& tokenizer, const std::string& file) {
  for (const json& line : read_json_lines(golden(file))) {
    const std::string text = line.at("text");
    const std::vector<int64_t> ids = line.at("ids");
    EXPECT_EQ(tokenizer.decode(ids), text) << line.dump();
    if (line.at("kind") == "unicode-recent") {
      if (tokenizer.encode(text) != ids) std::cout << "other ids, by an older Unicode version: " << line.dump() << "\n";
    } else {
      EXPECT_EQ(tokenizer.encode(text), ids) << line.dump();
    }
  }
}

TEST(Tokenizer, EncodesAndDecodesAsTheReleasedTokenizer) {
  expect_equal_to_lines(v41(), "data/tokenizer-v41.jsonl");
}

TEST(Tokenizer, EncodesAndDecodesWithTheTinyTokenizer) {
  expect_equal_to_lines(tiny(), "data/tokenizer-tiny.jsonl");
}

TEST(Tokenizer, DecodesBrokenUtf8AndSpecialTokensAsTheReleasedTokenizer) {
  for (const json& line : read_json_lines(golden("data/tokenizer-v41-decode.jsonl"))) {
    const std::vector<int64_t> ids = line.at("ids");
    EXPECT_EQ(v41().decode(ids, line.at("skip_special_tokens")), line.at("text")) << line.dump();
  }
}

TEST(Tokenizer, KnowsTheTokensOfTheReleasedFile) {
  EXPECT_EQ(v41().size(), 129280);
  EXPECT_EQ(v41().token_to_id("<｜begin▁of▁sentence｜>"), 0);
  EXPECT_EQ(v41().required_id("<｜deepseek_image｜>"), 129264);
  EXPECT_EQ(v41().token_to_id("no such token"), std::nullopt);
  EXPECT_TRUE(v41().is_special(1));
  EXPECT_TRUE(v41().is_added(128803));  // User
  EXPECT_FALSE(v41().is_special(128803));
  EXPECT_FALSE(v41().is_added(5000));
  EXPECT_EQ(v41().stored_string(223), "Ġ");
  EXPECT_THROW(v41().required_id("no such token"), DataError);
}

TEST(Tokenizer, RefusesIdsItDoesNotHave) {
  EXPECT_THROW(tiny().decode(std::vector<int64_t>{5, 2048}), DataError);
  EXPECT_THROW(tiny().decode(std::vector<int64_t>{-1}), DataError);
}

TEST(Tokenizer, RefusesTextThatIsNotUtf8) {
  for (const std::string text : {"\xFF", "ab\xC3", "ab\xED\xA0\x80", "ab\xC0\x80", "ab\xF4\x90\x80\x80"}) {
    EXPECT_THROW(tiny().encode(text), DataError) << text;
  }
}

TEST(Tokenizer, EncodesNulBytesAndNothing) {
  EXPECT_TRUE(v41().encode("").empty());
  EXPECT_EQ(v41().decode(v41().encode(std::string_view("a\0b", 3))), std::string("a\0b", 3));
}

TEST(Tokenizer, TakesLinearTimeOnLongRuns) {
  const std::string run(300000, 'a');
  EXPECT_EQ(tiny().decode(tiny().encode(run)), run);
}

TEST(Tokenizer, GivesTheSameIdsFromSeveralThreads) {
  const std::string text = read_file(golden("data/README.md"));
  const std::vector<int64_t> expected = v41().encode(text);
  std::vector<std::vector<int64_t>> found(4);
  std::vector<std::thread> threads;
  for (auto& ids : found) threads.emplace_back([&] { ids = v41().encode(text); });
  for (auto& thread : threads) thread.join();
  for (const auto& ids : found) EXPECT_EQ(ids, expected);
}

// The tiny file with one change, written to a temporary file and read.
class ChangedFile : public ::testing::Test {
 protected:
  ChangedFile() : file_(json::parse(read_file(golden("data/tiny-tokenizer/tokenizer.json")))) {}

  Tokenizer load() {
    path_ = ::testing::TempDir() + "/changed-tokenizer.json";
    std::ofstream(path_) << file_.dump();
    return Tokenizer::load(path_);
  }

  void expect_refused(const std::string& message) {
    try {
      load();
      FAIL() << "not refused: " << message;
    } catch (const DataError& error) {
      EXPECT_THAT(error.what(), AllOf(HasSubstr(path_), HasSubstr(message)));
    }
  }

  json file_;
  std::string path_;
};

TEST_F(ChangedFile, IsRefusedByTheKeyThatIsNotSupported) {
  const json original = file_;
  const auto refuse = [&](const char* pointer, const json& value, const std::string& message) {
    file_ = original;
    file_[json::json_pointer(pointer)] = value;
    expect_refused(message);
  };
  refuse("/normalizer", {{"type", "NFC"}}, "`normalizer`");
  refuse("/pre_tokenizer", nullptr, "`pre_tokenizer`");
  refuse("/pre_tokenizer/pretokenizers/0/behavior", "Removed", "`pre_tokenizer.pretokenizers[0].behavior`");
  refuse("/pre_tokenizer/pretokenizers/3/add_prefix_space", true, "`pre_tokenizer.pretokenizers[3].add_prefix_space`");
  refuse("/pre_tokenizer/pretokenizers/1/pattern/Regex", "[a", "regular expression");
  refuse("/decoder", {{"type", "WordPiece"}}, "`decoder`");
  refuse("/model/type", "Unigram", "`model.type`");
  refuse("/model/merges/7", "one two three", "`model.merges[7]`");
  refuse("/model/merges/7", {"Ġt", "no-such"}, "`model.merges[7]` needs the token `no-such`");
  refuse("/added_tokens/4/lstrip", true, "`added_tokens[4].lstrip`");
  refuse("/added_tokens/4/id", 3, "id 3 is given");
  refuse("/truncation", {{"max_length", 5}}, "`truncation`");
  file_ = original;
  file_["model"]["vocab"].erase("Ġ");
  expect_refused("for byte 32");
  file_ = original;
  file_["model"].erase("merges");
  expect_refused("merges");
}

TEST_F(ChangedFile, ThatIsNoJsonOrMissingIsADataError) {
  path_ = ::testing::TempDir() + "/broken-tokenizer.json";
  std::ofstream(path_) << "{\"model\": ";
  EXPECT_THROW(Tokenizer::load(path_), DataError);
  EXPECT_THROW(Tokenizer::load("/no/such/tokenizer.json"), DataError);
}

TEST_F(ChangedFile, WithMergesAsStringsGivesTheSameIds) {
  for (json& merge : file_["model"]["merges"]) merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  const Tokenizer strings = load();
  const std::string text = read_file(golden("data/README.md"));
  EXPECT_EQ(strings.encode(text), tiny().encode(text));
}

TEST_F(ChangedFile, CutsTheLongestAddedTokenAndTheUnnormalizedOnesFirst) {
  const auto add = [&](int id, const char* content, bool normalized) {
    file_["added_tokens"].push_back({{"id", id},
                                     {"content", content},
                                     {"normalized", normalized},
                                     {"special", false},
                                     {"single_word", false},
                                     {"lstrip", false},
                                     {"rstrip", false}});
  };
  add(2048, "<a>", true);
  add(2049, "<a><b>", true);
  add(2050, "><", false);
  add(2051, "<c", true);
  const Tokenizer tokenizer = load();
  EXPECT_THAT(tokenizer.encode("<a>"), ElementsAre(2048));
  EXPECT_THAT(tokenizer.encode("<c<a>"), ElementsAre(2051, 2048));
  EXPECT_EQ(tokenizer.encode("<a><b>")[2], 2050);  // "><" is cut before the normalized tokens are looked for
}

TEST_F(ChangedFile, WithIgnoreMergesTakesVocabularyEntriesWhole) {
  file_["model"]["vocab"]["zqzq"] = 2048;
  EXPECT_GT(load().encode("zqzq").size(), 1);  // no merge makes it
  file_["model"]["ignore_merges"] = true;
  EXPECT_THAT(load().encode("zqzq"), ElementsAre(2048));
}

}  // namespace
}  // namespace hyperparallel::data
