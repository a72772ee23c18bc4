#include "train/evaluate.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace hyperparallel::train {
namespace {

Answered answered(const std::string& expected, const std::string& predicted) {
  return {"question", {"/a.png"}, expected, predicted};
}

TEST(Score, CountsExactMatchAndTheMajorityAnswerByType) {
  const std::vector<Answered> answers = {answered("yes", "yes"), answered("no", "yes"),        answered("no", "no"),
                                         answered("red", "red"), answered("circle", "square"), answered("circle", "")};
  const nlohmann::ordered_json result = score(answers, {});
  EXPECT_DOUBLE_EQ(result.at("exact_match"), 0.5);
  EXPECT_EQ(result.at("count"), 6);
  EXPECT_DOUBLE_EQ(result.at("baseline").at("exact_match"), 2.0 / 6);
  EXPECT_DOUBLE_EQ(result.at("by_type").at("yes/no").at("exact_match"), 2.0 / 3);
  EXPECT_DOUBLE_EQ(result.at("by_type").at("yes/no").at("baseline"), 2.0 / 3);
  EXPECT_EQ(result.at("by_type").at("yes/no").at("majority_answer"), "no");
  EXPECT_DOUBLE_EQ(result.at("by_type").at("shape").at("exact_match"), 0.0);
  EXPECT_DOUBLE_EQ(result.at("by_type").at("shape").at("baseline"), 1.0);
  EXPECT_DOUBLE_EQ(result.at("by_type").at("color").at("exact_match"), 1.0);
}

TEST(Score, AnswersOfOtherSetsCountTogether) {
  const nlohmann::ordered_json result = score({answered("a long text", "a long text"), answered("another", "x")}, {});
  EXPECT_EQ(result.at("by_type").size(), 1u);
  EXPECT_DOUBLE_EQ(result.at("by_type").at("all").at("exact_match"), 0.5);
}

TEST(Score, KeepsRightAndWrongExamples) {
  std::vector<Answered> answers;
  for (int i = 0; i < 100; ++i) answers.push_back(answered("yes", i % 20 == 0 ? "no" : "yes"));
  EvaluateOptions options;
  options.examples = 8;
  const auto count = [](const nlohmann::ordered_json& result, bool correct) {
    int64_t n = 0;
    for (const auto& example : result.at("examples")) n += example.at("correct") == correct;
    return n;
  };
  EXPECT_EQ(count(score(answers, options), true), 4);
  EXPECT_EQ(count(score(answers, options), false), 4);
  answers.resize(20);  // one wrong answer: the rest are right ones
  EXPECT_EQ(count(score(answers, options), true), 7);
  EXPECT_EQ(count(score(answers, options), false), 1);
  EXPECT_EQ(score(answers, options).at("examples")[0].at("images")[0], "/a.png");
}

}  // namespace
}  // namespace hyperparallel::train
