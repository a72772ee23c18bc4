#include "data/messages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace hyperparallel::data {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

const std::string kGood =
    R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "é😀"}]}, {"role": "assistant", "content": "x"}]})";

std::string refusal(const std::string& line) {
  try {
    parse_conversation(line, "d.jsonl:7");
  } catch (const DataError& error) {
    return error.what();
  }
  return "accepted";
}

std::string refused_message(const std::string& message) {
  return refusal(R"({"messages": [)" + message + "]}");
}

TEST(Messages, EveryProperPrefixOfALineIsRefusedWithItsPlace) {
  ASSERT_EQ(refusal(kGood), "accepted");
  for (size_t length = 0; length < kGood.size(); ++length) {
    EXPECT_THAT(refusal(kGood.substr(0, length)), StartsWith("d.jsonl:7: not valid JSON at byte ")) << length;
  }
}

TEST(Messages, BrokenJsonIsRefusedByteByByte) {
  const auto text = [](const std::string& content) {
    return R"({"messages": [{"role": "user", "content": ")" + content + "\"}]}";
  };
  EXPECT_EQ(refusal(text("plain")), "accepted");
  for (const char* invalid : {"\xff", "\xc3", "\xc0\x80", "\xed\xa0\x80", "\xf5\x80\x80\x80", "\xe2\x82"}) {
    EXPECT_THAT(refusal(text(invalid)), HasSubstr("not valid JSON")) << "invalid UTF-8";
  }
  EXPECT_THAT(refusal(text(R"(\ud800)")), HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal(text(R"(\udc00\ud800)")), HasSubstr("not valid JSON"));
  EXPECT_EQ(refusal(text(R"(\ud83d\ude00)")), "accepted");
  EXPECT_THAT(refusal(text(std::string(1, '\0'))), HasSubstr("NUL"));
  EXPECT_THAT(refusal(kGood + std::string(1, '\0') + "rest"), HasSubstr("NUL"));
  EXPECT_EQ(refusal(text(R"(\u0000)")), "accepted") << "an escaped NUL is a character like others";
  EXPECT_THAT(refusal(text("\n")), HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal(kGood + " {}"), HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal("// note\n" + kGood), HasSubstr("not valid JSON"));
  EXPECT_THAT(refusal("\xEF\xBB\xBF" + kGood), HasSubstr("byte order mark"));
  EXPECT_EQ(refusal(kGood + " \t\r"), "accepted") << "CRLF files";
}

TEST(Messages, DuplicateKeysAndDeepNestingAreRefused) {
  EXPECT_THAT(refusal(R"({"messages": [], "messages": [{"role":"user","content":"x"}]})"), HasSubstr("`messages` occurs twice"));
  EXPECT_THAT(refused_message(R"({"role":"user","content":"x","content":"y"})"), HasSubstr("`content` occurs twice"));
  const auto nested = [](int depth) {
    return R"({"messages":[{"role":"user","content":"x"}],"other":)" + std::string(depth, '[') + std::string(depth, ']') + "}";
  };
  EXPECT_EQ(refusal(nested(kMaxJsonDepth - 1)), "accepted");
  EXPECT_THAT(refusal(nested(kMaxJsonDepth)), HasSubstr("nested deeper than 100"));
  EXPECT_THAT(refusal(nested(1'000'000)), HasSubstr("nested deeper than 100"));
}

TEST(Messages, ALineOfTenMegabytesIsReadAndABrokenOneGivesAShortMessage) {
  const std::string text(10 << 20, 'a');
  const std::string line = R"({"messages": [{"role": "user", "content": ")" + text + "\"}]}";
  EXPECT_EQ(parse_conversation(line, "w").messages[0].content[0].text, text);
  EXPECT_LT(refusal(line.substr(0, line.size() - 4)).size(), 400u);
}

TEST(Messages, WrongShapesAreNamedByTheirPlace) {
  EXPECT_THAT(refusal("[]"), HasSubstr("an object is needed, found array"));
  EXPECT_THAT(refusal("{}"), HasSubstr("no `messages`"));
  EXPECT_THAT(refusal(R"({"messages": {}})"), HasSubstr("d.jsonl:7: messages: a list is needed, found object"));
  EXPECT_THAT(refused_message(R"({"role":"user","content":"x"},{"role":"assistant","content":7})"),
              AllOf(HasSubstr("messages[1].content"), HasSubstr("found number")));
  EXPECT_THAT(refused_message(R"({"content":"x"})"), HasSubstr("messages[0].role"));
  EXPECT_THAT(refused_message(R"({"role":"user"})"), HasSubstr("no `content`"));
  EXPECT_THAT(refused_message(R"({"role":"user","content":[{"type":"video"}]})"), HasSubstr("content[0].type: found `video`"));
  EXPECT_THAT(refused_message(R"({"role":"user","content":[{"type":"text"}]})"), HasSubstr("no `text`"));
  EXPECT_THAT(refused_message(R"({"role":"assistant","content":"x","trian":false})"), HasSubstr("unknown key `trian`"));
  EXPECT_EQ(refused_message(R"({"role":"assistant","content":"x","refusal":null,"name":"n"})"), "accepted");
  EXPECT_THAT(refused_message(R"({"role":"user","content":"x","tool_calls":[{"function":{"name":"f","arguments":"{}"}}]})"),
              HasSubstr("only an assistant message"));
  EXPECT_THAT(refusal(R"({"messages":[{"role":"user","content":"x"}],"tools":[]})"), HasSubstr("stand in the system message"));
}

TEST(Messages, TrainAndWeightSayTheSameThing) {
  const auto train = [](const std::string& flags) {
    return parse_conversation(R"({"messages":[{"role":"assistant","content":"x")" + flags + "}]}", "w").messages[0].train;
  };
  EXPECT_EQ(train(""), std::nullopt);
  EXPECT_EQ(train(R"(,"train":true)"), true);
  EXPECT_EQ(train(R"(,"weight":0)"), false);
  EXPECT_EQ(train(R"(,"weight":1.0,"train":true)"), true);
  EXPECT_THAT(refused_message(R"({"role":"assistant","content":"x","weight":0.5})"), HasSubstr("0 or 1 is needed, found 0.5"));
  EXPECT_THAT(refused_message(R"({"role":"assistant","content":"x","weight":0,"train":true})"), HasSubstr("contradict"));
  EXPECT_THAT(refused_message(R"({"role":"user","content":"x","train":true})"), HasSubstr("only an assistant turn"));
  EXPECT_EQ(refused_message(R"({"role":"user","content":"x","train":false})"), "accepted");
}

TEST(PythonJson, NumbersStringsAndOrderAreThoseOfJsonDumps) {
  const auto again = [](const std::string& text) { return python_json(parse_json(text, "w")); };
  // Left: input; right: what json.dumps(json.loads(input), ensure_ascii=False) gives.
  const std::pair<const char*, const char*> cases[] = {
      {"1.0", "1.0"},
      {"-0.0", "-0.0"},
      {"-0", "0"},
      {"1e5", "100000.0"},
      {"1e15", "1000000000000000.0"},
      {"1e16", "1e+16"},
      {"123456789012345678.0", "1.2345678901234568e+17"},
      {"0.0001", "0.0001"},
      {"0.00001", "1e-05"},
      {"1.5e300", "1.5e+300"},
      {"0.1", "0.1"},
      {"5e-324", "5e-324"},
      {"9007199254740993", "9007199254740993"},
      {"-9223372036854775808", "-9223372036854775808"},
      {"18446744073709551615", "18446744073709551615"},
      {"123456789012345678901234567890", "123456789012345678901234567890"},
      {R"({"z":1,"a":[true,null,{}]})", R"({"z": 1, "a": [true, null, {}]})"},
      {R"("\u00e9\/\u007f\u0001\b\f\n\r\t\"\\")", "\"é/\x7f\\u0001\\b\\f\\n\\r\\t\\\"\\\\\""},
      {"[]", "[]"},
  };
  for (const auto& [text, expected] : cases) EXPECT_EQ(again(text), expected);
}

}  // namespace
}  // namespace hyperparallel::data
