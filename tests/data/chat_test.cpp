#include "data/chat.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "data/messages.h"
#include "data/sample.h"
#include "support/sha256.h"
#include "support/test_data.h"

namespace hyperparallel::data {
namespace {

using ::hyperparallel::test::fetched;
using ::hyperparallel::test::golden;
using nlohmann::json;
using ::testing::HasSubstr;

const Tokenizer& tokenizer(const std::string& name) {
  static const Tokenizer v41 = Tokenizer::load(fetched("tokenizer-v41.json"));
  static const Tokenizer tiny = Tokenizer::load(golden("data/tiny-tokenizer/tokenizer.json"));
  return name == "v41" ? v41 : tiny;
}

std::vector<OrderedJson> chat_lines() {
  std::ifstream file(golden("data/chat.jsonl"));
  std::vector<OrderedJson> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(OrderedJson::parse(line));
  return lines;
}

// The fixed texts stand in no file of the repository; the ids of a case that uses them hold them.
ToolText recover_tool_text() {
  ToolText text;
  for (const OrderedJson& line : chat_lines()) {
    if (!line.contains("prompt")) continue;
    const std::string shown = line["prompt"];
    const auto between = [&](const std::string& whole, const std::string& before, const std::string& after) {
      const size_t begin = whole.find(before) + before.size();
      return whole.substr(begin, whole.find(after, begin) - begin);
    };
    const auto whole = [&] { return tokenizer("v41").decode(line["v41"]["ids"].get<std::vector<int64_t>>()); };
    if (line["kind"] == "tools-declared") {
      text.tools_head = between(whole(), "Use tools.\n\n", "{\"name\"");
      text.tools_tail = between(whole(), "\"required\": [\"sensor\"]}}", "<｜User｜>");
    }
    if (line["kind"] == "response-format") text.response_format_head = between(whole(), "S\n\n", "{\"type\"");
  }
  return text;
}

SampleOptions golden_options() {
  SampleOptions options;
  options.tool_text = recover_tool_text();
  return options;
}

std::vector<SampleImage> plan_images(const Conversation& conversation) {
  std::vector<SampleImage> images;
  for (const auto& [width, height] : conversation.image_sizes.value_or(std::vector<std::pair<int64_t, int64_t>>{})) {
    images.emplace_back().plan = plan_image(width, height, ImageLimits{});
  }
  return images;
}

class ChatGolden : public ::testing::TestWithParam<std::string> {};

TEST_P(ChatGolden, PromptsIdsSpansAndLabelsAreThoseOfTheReference) {
  const SampleEncoder encoder(tokenizer(GetParam()), golden_options());
  int cases = 0;
  for (const OrderedJson& line : chat_lines()) {
    if (line.value("error", false)) continue;
    SCOPED_TRACE(line["id"].dump() + " " + line["kind"].dump());
    ++cases;
    const Conversation conversation = conversation_from_json(line, "chat.jsonl");
    const RenderedChat chat = encoder.render(conversation, "chat.jsonl");
    EXPECT_EQ(test::sha256(std::vector<char>(chat.text.begin(), chat.text.end())), line["prompt_sha256"]);
    const OrderedJson& expected = line[GetParam()];
    const EncodedChat encoded = encode_chat(chat, encoder.tokenizer());
    EXPECT_EQ(encoded.ids, expected["ids"].get<std::vector<int64_t>>());

    const bool sft = line["sft"];
    const Sample sample = encoder.assemble(chat, encoded, plan_images(conversation), sft, {"chat.jsonl", 1});
    EXPECT_EQ(sample.tokens(), expected["length"]);
    auto spans = OrderedJson::array();
    for (const SampleImage& image : sample.images) {
      spans.push_back({image.start, image.plan.tokens, image.plan.llm_rows, image.plan.llm_columns});
    }
    EXPECT_EQ(spans, expected["spans"]);
    if (!sft) continue;
    std::vector<int64_t> targets;
    int64_t first = -1;
    for (int64_t t = 0; t < sample.tokens(); ++t) {
      if (sample.labels[t] == kIgnoreLabel) continue;
      if (first < 0) first = t + 1;
      targets.push_back(sample.labels[t]);
      EXPECT_EQ(sample.labels[t], sample.input_ids[t + 1]);
    }
    EXPECT_EQ(first, expected["label_start"]);
    EXPECT_EQ(sample.supervised_tokens, expected["supervised"]);
    EXPECT_EQ(static_cast<int64_t>(targets.size()), sample.supervised_tokens);
    EXPECT_EQ(encoder.tokenizer().decode(targets), line["supervised_text"]);
    EXPECT_EQ((sample.tokens() + 1) / 2 * 2, expected["padded_length"]);
  }
  EXPECT_EQ(cases, 40);
}

TEST_P(ChatGolden, RefusesWhatTheReferenceRefuses) {
  const SampleEncoder encoder(tokenizer(GetParam()), golden_options());
  int cases = 0;
  for (const OrderedJson& line : chat_lines()) {
    if (!line.value("error", false)) continue;
    SCOPED_TRACE(line["why"].dump());
    ++cases;
    EXPECT_THROW(
        {
          const Conversation conversation = conversation_from_json(line, "chat.jsonl");
          const RenderedChat chat = encoder.render(conversation, "chat.jsonl");
          encoder.assemble(chat, encode_chat(chat, encoder.tokenizer()), plan_images(conversation), true, {"chat.jsonl", 1});
        },
        DataError);
  }
  EXPECT_EQ(cases, 9);
}

INSTANTIATE_TEST_SUITE_P(Tokenizers, ChatGolden, ::testing::Values("v41", "tiny"), [](const auto& info) { return info.param; });

std::string render(const std::string& line) {
  return render_chat(parse_conversation(line, "test"), {}, {}, "test").text;
}

std::string render_error(const std::string& line) {
  try {
    render(line);
  } catch (const DataError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Chat, ToolsAndResponseFormatsWithoutTheirFixedTextsAreRefused) {
  EXPECT_THAT(
      render_error(
          R"({"messages":[{"role":"system","content":"S","tools":[{"function":{"name":"f"}}]},{"role":"user","content":"x"}]})"),
      HasSubstr("--tool-text"));
  EXPECT_THAT(
      render_error(
          R"({"messages":[{"role":"system","content":"S","response_format":{"type":"object"}},{"role":"user","content":"x"}]})"),
      HasSubstr("response_format_head"));
}

TEST(Chat, OnlySystemTurnsRenderTools) {
  EXPECT_EQ(render(R"({"messages":[{"role":"user","content":"x","tools":[{"function":{"name":"f"}}]}]})"),
            "<｜begin▁of▁sentence｜><｜User｜>x<｜Assistant｜></think>");
}

TEST(Chat, NamespacesAreDrawnIntoNamesAndDescriptions) {
  ToolText text;
  text.tools_head = "[";
  text.tools_tail = "]";
  const std::string line = R"({"messages":[{"role":"system","content":"S","tools":[
    {"type":"function","namespace":{"name":"ns","description":"About ns."},"function":{"name":"f","description":"Does f.","strict":true}},
    {"type":"function","function":{"name":"b::g"}}]},
    {"role":"user","content":"x"},
    {"role":"assistant","tool_calls":[{"function":{"name":"f","arguments":"{}"},"namespace":"ns"}]}]})";
  EXPECT_EQ(render_chat(parse_conversation(line, "test"), {}, text, "test").text,
            "<｜begin▁of▁sentence｜><｜System｜>S\n\n[{\"name\": \"ns::f\", \"description\": \"About ns.\\nDoes f.\", "
            "\"strict\": true}\n"
            "{\"name\": \"b::g\"}]<｜User｜>x<｜Assistant｜></think>\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"ns::f\">\n\n"
            "</｜DSML｜ invoke>\n</｜DSML｜ calls><｜end▁of▁sentence｜>");
  EXPECT_THAT(
      render_error(R"({"messages":[{"role":"user","content":"x","tools":[{"namespace":"a","function":{"name":"b::f"}}]}]})"),
      HasSubstr("declared in the namespace"));
}

TEST(Chat, ArgumentsAreOpenedOnceOrTwiceAndElseBecomeOneParameter) {
  const auto parameters = [](const std::string& arguments) {
    const std::string text = render(
        R"({"messages":[{"role":"user","content":"x"},{"role":"assistant","content":"","tool_calls":[{"function":{"name":"f","arguments":)" +
        arguments + "}}]}]}");
    const size_t begin = text.find("invoke name=\"f\">\n") + 17;
    return text.substr(begin, text.find("\n</｜DSML｜ invoke>") - begin);
  };
  const std::string one = "<｜DSML｜ parameter name=\"a\" string=\"false\">1</｜DSML｜ parameter>";
  EXPECT_EQ(parameters(R"({"a": 1})"), one);
  EXPECT_EQ(parameters(R"("{\"a\": 1}")"), one);
  EXPECT_EQ(parameters(R"("\"{\\\"a\\\": 1}\"")"), one);
  EXPECT_EQ(parameters(R"("not json")"), "<｜DSML｜ parameter name=\"arguments\" string=\"true\">not json</｜DSML｜ parameter>");
  EXPECT_EQ(parameters(R"("[1]")"), "<｜DSML｜ parameter name=\"arguments\" string=\"true\">[1]</｜DSML｜ parameter>");
  EXPECT_EQ(parameters(R"([1])"), "<｜DSML｜ parameter name=\"arguments\" string=\"false\">[1]</｜DSML｜ parameter>");
}

TEST(Chat, DeclaredToolsKeepHistoricReasoning) {
  const std::string line = R"({"thinking":true,"messages":[{"role":"user","content":"a","tools":[{"function":{"name":"f"}}]},
    {"role":"assistant","content":"b","reasoning_content":"r"},{"role":"user","content":"c"}]})";
  EXPECT_THAT(render(line), HasSubstr("a<｜Assistant｜><think>r</think>b"));
}

TEST(Chat, PicturesAreNamedInTheOrderOfTheirPlaceholdersAlsoAfterToolResultsAreSorted) {
  const std::string line = R"({"messages":[{"role":"user","content":"x"},
    {"role":"assistant","content":"","tool_calls":[{"id":"A","function":{"name":"f","arguments":"{}"}},{"id":"B","function":{"name":"f","arguments":"{}"}}]},
    {"role":"tool","tool_call_id":"B","content":[{"type":"image_url","image_url":"b.png"}]},
    {"role":"tool","tool_call_id":"A","content":[{"type":"text","text":"t"},{"type":"image_url","image_url":"a.png"}]}]})";
  const RenderedChat chat = render_chat(parse_conversation(line, "test"), {}, {}, "test");
  EXPECT_EQ(chat.image_urls, (std::vector<std::string>{"a.png", "b.png"}));
  EXPECT_THAT(
      chat.text,
      HasSubstr("<tool_result>t\n\n<｜deepseek_image｜></tool_result>\n\n<tool_result><｜deepseek_image｜></tool_result>"));
}

TEST(Chat, IdsAreThoseOfTheWholeTextAlsoWhereTurnsMeetWithoutAMarker) {
  const std::string line =
      R"({"messages":[{"role":"latest_reminder","content":"rem"},{"role":"assistant","content":"inder","wo_eos":true},
    {"role":"assistant","content":"s of"},{"role":"user","content":"u"},{"role":"assistant","content":"v"}]})";
  const RenderedChat chat = render_chat(parse_conversation(line, "test"), {}, {}, "test");
  const EncodedChat encoded = encode_chat(chat, tokenizer("tiny"));
  EXPECT_EQ(encoded.ids, tokenizer("tiny").encode(chat.text));
  ASSERT_EQ(encoded.turns.size(), 3u);
  EXPECT_EQ(encoded.turns[0].begin, 2 + static_cast<int64_t>(tokenizer("tiny").encode("rem").size()));
  EXPECT_EQ(encoded.turns[0].end, encoded.turns[1].begin);
  EXPECT_EQ(encoded.turns[2].end, static_cast<int64_t>(encoded.ids.size()));
}

}  // namespace
}  // namespace hyperparallel::data
