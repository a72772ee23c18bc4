#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "cli/program.h"

namespace hyperparallel {
namespace {

using nlohmann::json;
using testing::HasSubstr;

const std::string kTiny = "--tokenizer tests/golden/data/tiny-tokenizer/tokenizer.json";

std::vector<json> golden_lines() {
  std::ifstream file(HP_SOURCE_DIR "/tests/golden/data/chat.jsonl");
  std::vector<json> lines;
  for (std::string line; std::getline(file, line);) lines.push_back(json::parse(line));
  return lines;
}

std::vector<json> lines_of(const std::string& output) {
  std::istringstream stream(output);
  std::vector<json> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(json::parse(line));
  return lines;
}

TEST(Render, GivesALineForEachLineWithTheFieldsOfTheReference) {
  const ProgramResult result = run_program("render --sft " + kTiny + " < tests/golden/data/chat.jsonl");
  EXPECT_EQ(result.code, 3) << "some lines are refused";
  const std::vector<json> expected = golden_lines(), rendered = lines_of(result.output);
  ASSERT_EQ(rendered.size(), expected.size());
  int equal = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const std::string kind = expected[i]["kind"];
    SCOPED_TRACE(kind);
    EXPECT_EQ(rendered[i]["id"], expected[i]["id"]);
    // Refused are the reference's errors, what has no answer to train on, and what needs texts that are not given.
    if (expected[i].value("error", false) || !expected[i]["sft"] || kind.starts_with("tools-") || kind == "response-format") {
      EXPECT_EQ(rendered[i]["error"], true);
      EXPECT_THAT(rendered[i]["why"].get<std::string>(), HasSubstr("standard input:" + std::to_string(i + 1)));
      continue;
    }
    ++equal;
    for (const char* key : {"prompt", "prompt_sha256", "supervised_text"}) EXPECT_EQ(rendered[i][key], expected[i][key]) << key;
    for (const char* key : {"ids", "length", "spans", "label_start", "supervised", "padded_length"}) {
      EXPECT_EQ(rendered[i][key], expected[i]["tiny"][key]) << key;
    }
  }
  EXPECT_GT(equal, 25);
}

TEST(Render, WithoutSftPromptsThatWaitForAnAnswerAreRendered) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "in.jsonl") << R"({"messages":[{"role":"user","content":"U"}]})"
                                            << "\n";
  const ProgramResult result = run_program("render " + kTiny + " < " + (folder.path() / "in.jsonl").string());
  EXPECT_EQ(result.code, 0) << result.error;
  const json line = lines_of(result.output).at(0);
  EXPECT_EQ(line["ids"], json({0, 2035, 55, 2036, 2038}));
  EXPECT_FALSE(line.contains("label_start"));
}

TEST(Render, ReadsTheFixedTextsFromAFile) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "tools.json") << R"({"tools_head":"<h>","tools_tail":"<t>"})";
  std::ofstream(folder.path() / "in.jsonl")
      << R"({"messages":[{"role":"system","content":"S","tools":[{"function":{"name":"f"}}]},{"role":"user","content":"U"}]})"
      << "\n";
  const std::string input = " < " + (folder.path() / "in.jsonl").string();
  EXPECT_THAT(run_program("render " + kTiny + input).error, HasSubstr("--tool-text"));
  const ProgramResult result = run_program("render " + kTiny + " --tool-text " + (folder.path() / "tools.json").string() + input);
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_THAT(result.output, HasSubstr(R"(S\n\n<h>{\"name\": \"f\"}<t><｜User｜>U)"));
  std::ofstream(folder.path() / "tools.json") << R"({"tool_head":"<h>"})";
  EXPECT_THAT(run_program("render " + kTiny + " --tool-text " + (folder.path() / "tools.json").string() + input).error,
              HasSubstr("unknown key `tool_head`"));
}

TEST(InspectData, MarksTheTokensThatAreTrainedOn) {
  const TemporaryFolder folder;
  const std::string path = (folder.path() / "d.jsonl").string();
  std::ofstream(path)
      << R"({"messages":[{"role":"user","content":[{"type":"image_url","image_url":")" << HP_SOURCE_DIR
      << R"(/tests/golden/data/images/easyvqa-test-0.png"},{"type":"text","text":"a\n?"}]},{"role":"assistant","content":"no"}]})"
      << "\n{\n";
  const ProgramResult result = run_program("inspect data " + path + " " + kTiny + " --min-pixels 3136 --max-image-tokens 64");
  EXPECT_EQ(result.code, 3) << "the second line is bad";
  std::vector<std::string> marked, other;
  std::istringstream stream(result.output);
  for (std::string line; std::getline(stream, line);)
    (line.find("  yes    ") != std::string::npos ? marked : other).push_back(line);
  ASSERT_EQ(marked.size(), 2u) << result.output;
  EXPECT_THAT(marked[0], HasSubstr("no"));
  EXPECT_THAT(marked[1], HasSubstr("<｜end▁of▁sentence｜>"));
  EXPECT_THAT(other, testing::Contains(HasSubstr("<｜Assistant｜>")));
  EXPECT_THAT(result.output, HasSubstr("2-9    2047         [picture 1: "));
  EXPECT_THAT(result.output, HasSubstr("64 x 64 pixels -> 70 x 70, 5 x 5 patches, 2 rows x 2 columns of tokens]"));
  EXPECT_THAT(result.output, HasSubstr(path + ":2: not valid JSON"));
  EXPECT_THAT(result.output, HasSubstr("2 of 2 samples shown, 1 refused"));
}

}  // namespace
}  // namespace hyperparallel
