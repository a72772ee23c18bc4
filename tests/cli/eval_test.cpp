// `hyperparallel eval` and `hyperparallel generate` on a run of two steps.
#include <gmock/gmock.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "program.h"

namespace hyperparallel {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;

// One run for all tests; each test that writes works in a copy.
class TrainedRun : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    folder_ = new TemporaryFolder;
    const ProgramResult trained = run_program(
        "train configs/tiny.yaml --train.threads 1 --train.steps 2 --validation.interval 0"
        " --optimizer.schedule.warmup_steps 1 --validation.generate_samples 0"
        " --train.output " +
        run().string());
    ASSERT_EQ(trained.code, 0) << trained.error;
  }
  static void TearDownTestSuite() {
    delete folder_;
    folder_ = nullptr;
  }
  static std::filesystem::path run() { return folder_->path() / "run"; }
  static json read_json(const std::filesystem::path& path) { return json::parse(read_text(path)); }

  static TemporaryFolder* folder_;
};
TemporaryFolder* TrainedRun::folder_ = nullptr;

using Eval = TrainedRun;
using Generate = TrainedRun;

TEST_F(Eval, WritesScoresExamplesAndTheReport) {
  const TemporaryFolder copy;
  std::filesystem::copy(run(), copy.path() / "run", std::filesystem::copy_options::recursive);
  std::filesystem::remove(copy.path() / "run/report.html");
  const ProgramResult result = run_program("eval " + (copy.path() / "run").string() + " --split validation --max-new-tokens 4");
  ASSERT_EQ(result.code, 0) << result.error;
  EXPECT_THAT(result.output, AllOf(HasSubstr("exact match"), HasSubstr("6 questions"), HasSubstr("report.html")));
  const json scores = read_json(copy.path() / "run/eval.json");
  EXPECT_EQ(scores.at("split"), "validation");
  EXPECT_EQ(scores.at("count"), 6);
  EXPECT_EQ(scores.at("examples").size(), 6u);
  EXPECT_THAT(scores.at("checkpoint").get<std::string>(), HasSubstr("step-00000002"));
  EXPECT_GE(scores.at("exact_match"), 0);
  EXPECT_TRUE(std::filesystem::exists(copy.path() / "run/report.html"));
}

TEST_F(Eval, TakesAConfigurationALimitAndAnotherCheckpoint) {
  const TemporaryFolder other;
  const ProgramResult result = run_program(
      "eval configs/tiny.yaml --split validation --limit 2 --max-new-tokens 2 --checkpoint " +
      (run() / "checkpoints/step-00000002").string() + " --train.output " + other.path().string() + " --train.threads 1");
  ASSERT_EQ(result.code, 0) << result.error;
  EXPECT_EQ(read_json(other.path() / "eval.json").at("count"), 2);
}

TEST_F(Eval, MistakesAreNamed) {
  const auto expect = [](const std::string& arguments, int code, const std::string& part) {
    const ProgramResult result = run_program("eval " + arguments);
    EXPECT_EQ(result.code, code) << arguments;
    EXPECT_THAT(result.error, HasSubstr(part)) << arguments;
  };
  const TemporaryFolder empty;
  expect(empty.path().string(), 2, "it holds no config.yaml");
  expect("nowhere", 2, "nowhere");
  expect(run().string() + " --split dev", 2, "--split dev: expected train, validation or test");
  expect(run().string() + " --split test", 2, "data.test names no file");
  expect(run().string() + " --limit many", 2, "--limit");
  expect(run().string() + " --train.stesp 3", 2, "train.stesp");
  expect("configs/tiny.yaml --split validation --train.output " + empty.path().string(), 4, "holds no checkpoint");
  EXPECT_FALSE(std::filesystem::exists(empty.path() / "eval.json"));
}

TEST_F(Generate, AnswersAPromptWithAPictureTheSameWayTwice) {
  const std::string question = "generate " + run().string() +
                               " --image tests/golden/data/images/easyvqa-test-0.png --prompt 'what shape is in the image?'"
                               " --max-new-tokens 6";
  const ProgramResult first = run_program(question), second = run_program(question);
  ASSERT_EQ(first.code, 0) << first.error;
  EXPECT_FALSE(first.output.empty());
  EXPECT_EQ(first.output, second.output);
  EXPECT_EQ(std::count(first.output.begin(), first.output.end(), '\n'),
            1 + std::count(first.output.begin(), first.output.end() - 1, '\n'));
}

TEST_F(Generate, AnswersConversationsFromStandardInputInTheirOrder) {
  const std::string validation = HP_SOURCE_DIR "/configs/tiny/validation.jsonl";
  const ProgramResult many = run_program("generate " + run().string() + " --max-new-tokens 3 < " + validation,
                                         std::filesystem::path(validation).parent_path());
  ASSERT_EQ(many.code, 0) << many.error;
  std::vector<json> answers;
  std::istringstream lines(many.output);
  for (std::string line; std::getline(lines, line);) answers.push_back(json::parse(line));
  ASSERT_EQ(answers.size(), 6u);
  for (const json& answer : answers) EXPECT_TRUE(answer.at("answer").is_string());
  const ProgramResult alone = run_program("generate " + run().string() + " --max-new-tokens 3 --batch 1 < " + validation,
                                          std::filesystem::path(validation).parent_path());
  EXPECT_EQ(alone.output, many.output);
}

TEST_F(Generate, DrawsDependOnTheSeed) {
  const std::string question = "generate " + run().string() + " --prompt hello --max-new-tokens 8 --temperature 3 --seed ";
  const ProgramResult one = run_program(question + "1"), again = run_program(question + "1"), two = run_program(question + "2");
  ASSERT_EQ(one.code, 0) << one.error;
  EXPECT_EQ(one.output, again.output);
  EXPECT_NE(one.output, two.output);
}

TEST_F(Generate, MistakesAreNamed) {
  const auto expect = [](const std::string& arguments, int code, const std::string& part) {
    const ProgramResult result = run_program("generate " + arguments + " < /dev/null");
    EXPECT_EQ(result.code, code) << arguments << "\n" << result.error;
    EXPECT_THAT(result.error, HasSubstr(part)) << arguments;
    EXPECT_EQ(result.output, "") << arguments;
  };
  const std::string model = run().string();
  expect("nowhere --prompt x", 4, "nowhere");
  expect(model + " --prompt x --image missing.png", 3, "missing.png");
  expect(model + " --image missing.png", 2, "--image needs --prompt");
  expect(model + " --prompt x --max-new-tokens 0", 2, "--max-new-tokens");
  expect(model + " --prompt x --top-p 2", 2, "--top-p");
  expect(model + " --prompt x --unknown", 2, "--unknown");
  expect(model + " --prompt x --tokenizer missing.json", 3, "missing.json");
  expect("--prompt x", 2, "MODEL");
}

}  // namespace
}  // namespace hyperparallel
