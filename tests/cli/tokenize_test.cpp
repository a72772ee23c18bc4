#include <gmock/gmock.h>

#include "cli/program.h"
#include "support/test_data.h"

namespace hyperparallel {
namespace {

using ::testing::HasSubstr;
const std::string kTokenizer = "tests/golden/data/tiny-tokenizer/tokenizer.json";

ProgramResult tokenize(const std::string& input) {
  const TemporaryFolder folder;
  std::ofstream(folder.path() / "input") << input;
  return run_program("tokenize --tokenizer " + kTokenizer + " < " + (folder.path() / "input").string());
}

TEST(Tokenize, WritesTheGoldenIdsLineByLine) {
  const auto lines = test::read_json_lines(test::golden("data/tokenizer-tiny.jsonl"));
  std::string input, expected;
  for (const auto& line : lines) {
    if (line.at("kind") == "unicode-recent") continue;
    input += nlohmann::json{{"text", line.at("text")}, {"more", 1}}.dump(-1, ' ', true) + "\n";
    expected += nlohmann::json{{"ids", line.at("ids")}}.dump() + "\n";
  }
  const ProgramResult result = tokenize(input);
  EXPECT_EQ(result.code, 0) << result.error;
  std::string found = result.output;
  std::erase(found, ' ');
  EXPECT_EQ(found, expected);
}

TEST(Tokenize, NamesTheLineThatItCannotRead) {
  for (const std::string bad :
       {"{\"text\": ", "{\"txt\": \"a\"}", "{\"text\": 1}", "[]", "{\"text\": \"\xFF\"}", "{\"text\": \"\\ud800\"}", ""}) {
    const ProgramResult result = tokenize("{\"text\": \"a\"}\n" + bad + "\n{\"text\": \"b\"}\n");
    EXPECT_EQ(result.code, 3) << bad;
    EXPECT_THAT(result.error, HasSubstr("line 2")) << bad;
    EXPECT_THAT(result.output, HasSubstr("ids")) << bad;  // what came before is written
  }
}

TEST(Tokenize, NamesTheFileThatItCannotRead) {
  const ProgramResult result = run_program("tokenize --tokenizer nowhere.json < /dev/null");
  EXPECT_EQ(result.code, 3);
  EXPECT_THAT(result.error, HasSubstr("nowhere.json"));
  EXPECT_EQ(run_program("tokenize < /dev/null").code, 2);
}

}  // namespace
}  // namespace hyperparallel
