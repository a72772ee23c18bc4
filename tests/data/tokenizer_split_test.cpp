#include "data/tokenizer_split.h"

#include <gtest/gtest.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>

#include <random>

#include "base/error.h"
#include "data/tokenizer_file.h"
#include "support/test_data.h"

namespace hyperparallel::data {
namespace {

using ::hyperparallel::test::golden;
using ::hyperparallel::test::read_json_lines;

std::vector<std::string> pieces(const Splitter& splitter, const std::string& text) {
  std::vector<size_t> ends;
  splitter.split(text, ends);
  std::vector<std::string> result;
  size_t begin = 0;
  for (const size_t end : ends) {
    result.push_back(text.substr(begin, end - begin));
    begin = end;
  }
  return result;
}

std::vector<std::string> deepseek_patterns() {
  return read_tokenizer_file(golden("data/tiny-tokenizer/tokenizer.json")).splits;
}

// A code point of a kind that the patterns tell apart, known to every Unicode version in use.
UChar32 random_code_point(std::mt19937& random) {
  static const std::vector<std::pair<UChar32, UChar32>> ranges = {
      {0x20, 0x20},     {0x20, 0x20},     {0x0A, 0x0A},       {0x0D, 0x0D},       {0x00, 0x7F},
      {0x00, 0x7F},     {'a', 'z'},       {'0', '9'},         {0x80, 0x24F},      {0x300, 0x36F},
      {0x370, 0x52F},   {0x590, 0x6FF},   {0x900, 0xDFF},     {0x1680, 0x180F},   {0x2000, 0x206F},
      {0x2070, 0x24FF}, {0x3000, 0x3100}, {0x4DF0, 0x4E20},   {0x9F90, 0x9FFF},   {0xD7F0, 0xD7FF},
      {0xE000, 0xE010}, {0xFE00, 0xFFFF}, {0x1D7C0, 0x1D7FF}, {0x1F300, 0x1F6FF}, {0x0, 0x10FFFF}};
  const auto [first, last] = ranges[random() % ranges.size()];
  for (;;) {
    const UChar32 c = first + static_cast<UChar32>(random() % (last - first + 1));
    UVersionInfo age;
    u_charAge(c, age);
    if (!U_IS_SURROGATE(c) && age[0] <= 14) return c;
  }
}

TEST(Splitter, ScannerCutsRandomTextAsTheRegularExpressions) {
  const auto scanner = make_scanner(deepseek_patterns());
  const auto regex = make_regex_splitter(deepseek_patterns(), "test");
  ASSERT_TRUE(scanner);
  std::mt19937 random(7);
  for (int round = 0; round < 30000; ++round) {
    icu::UnicodeString text;
    for (size_t length = random() % 12 + 1; length > 0; --length) {
      const UChar32 c = random_code_point(random);
      for (size_t repeat = random() % 8 == 0 ? 3 : 1; repeat > 0; --repeat) text.append(c);
    }
    std::string utf8;
    text.toUTF8String(utf8);
    ASSERT_EQ(pieces(*scanner, utf8), pieces(*regex, utf8)) << nlohmann::json(utf8).dump(-1, ' ', true);
  }
}

TEST(Splitter, ScannerCutsGoldenTextAsTheRegularExpressions) {
  const auto scanner = make_scanner(deepseek_patterns());
  const auto regex = make_regex_splitter(deepseek_patterns(), "test");
  for (const auto& line : read_json_lines(golden("data/tokenizer-v41.jsonl"))) {
    if (line.at("kind") == "unicode-recent") continue;
    const std::string text = line.at("text");
    EXPECT_EQ(pieces(*scanner, text), pieces(*regex, text)) << line.dump();
  }
}

TEST(Splitter, ScannerStandsForItsOwnPatternsAlone) {
  auto patterns = deepseek_patterns();
  patterns.pop_back();
  EXPECT_FALSE(make_scanner(patterns));
  EXPECT_FALSE(make_scanner({}));
}

using Pieces = std::vector<std::string>;

TEST(Splitter, CutsEachPieceOfTheSplitBeforeByItself) {
  const auto regex = make_regex_splitter(deepseek_patterns(), "test");
  EXPECT_EQ(pieces(*regex, "a  1"), (Pieces{"a", "  ", "1"}));
  EXPECT_EQ(pieces(*regex, "a  b"), (Pieces{"a", " ", " b"}));
  EXPECT_EQ(pieces(*regex, "12345"), (Pieces{"123", "45"}));
}

TEST(Splitter, WhiteSpaceIsExactlyThe25CodePoints) {
  const auto regex = make_regex_splitter({R"(\s)"}, "test");
  const auto in_class = make_regex_splitter({R"([\sx])"}, "test");
  const auto negated = make_regex_splitter({R"(\S)"}, "test");
  int white = 0;
  for (UChar32 c = 1; c < 0x20000; c = c == 0xD7FF ? 0xE000 : c + 1) {
    std::string text;
    icu::UnicodeString("a").append(c).append(c).append(u'a').toUTF8String(text);
    const bool is_white = pieces(*regex, text).size() == 4;
    ASSERT_EQ(is_white, static_cast<bool>(u_isUWhiteSpace(c))) << c;
    ASSERT_EQ(is_white, pieces(*in_class, text).size() == 4 && c != 'x') << c;
    ASSERT_EQ(is_white, pieces(*negated, text).size() == 3) << c;
    white += is_white;
  }
  EXPECT_EQ(white, 25);
}

TEST(Splitter, RefusesPatternsItWouldReadDifferently) {
  for (const char* pattern : {"[a", R"([^\S])", "[a-z&&[^b]]", "("}) {
    EXPECT_THROW(make_regex_splitter({pattern}, "test"), DataError) << pattern;
  }
}

TEST(Splitter, CutsLongRunsOfEachKind) {
  const auto scanner = make_scanner(deepseek_patterns());
  const auto regex = make_regex_splitter(deepseek_patterns(), "test");
  for (const char* unit : {" ", "\n", "\t", "a", "7", "!", "\u4e00", "\u0301", "\x01", " a", "\n ", "!\n"}) {
    std::string text;
    for (int i = 0; i < 200000; ++i) text += unit;
    text += "x";
    EXPECT_EQ(pieces(*scanner, text), pieces(*regex, text)) << "runs of `" << unit << "`";
  }
}

TEST(Splitter, KeepsTextThatNothingMatches) {
  EXPECT_EQ(pieces(*make_regex_splitter({"b*"}, "test"), "aabba"), (Pieces{"aa", "bb", "a"}));
  EXPECT_EQ(pieces(*make_regex_splitter({}, "test"), "abc"), (Pieces{"abc"}));
}

}  // namespace
}  // namespace hyperparallel::data
