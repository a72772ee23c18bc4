#include "data/sample.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data_fixtures.h"

namespace hyperparallel::data {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;
using Kind = SampleEncoder::Outcome::Kind;

const SampleId kId{"/data/d.jsonl", 12};

SampleOptions options() {
  SampleOptions options;
  options.image_limits = small_images();
  return options;
}

Sample encode(const std::string& line, const SampleOptions& with = options()) {
  return SampleEncoder(tiny_tokenizer(), with).encode(line, kId);
}

SampleEncoder::Outcome load(const std::string& line, const SampleOptions& with) {
  return SampleEncoder(tiny_tokenizer(), with).load([&] { return line; }, kId);
}

const std::string kTwoTurns = R"({"messages":[{"role":"system","content":"Be brief."},{"role":"user","content":"one"},
  {"role":"assistant","content":"first"%s},{"role":"user","content":"two"},{"role":"assistant","content":"second"%s}]})";

std::string two_turns(const std::string& first = "", const std::string& second = "") {
  std::string line = kTwoTurns;
  line.replace(line.find("%s"), 2, first);
  return line.replace(line.find("%s"), 2, second);
}

TEST(Sample, AssistantTextAndItsEndOfTurnTokenAreTrainedOnAndNothingElse) {
  SampleOptions all = options();
  all.supervise = Supervise::kAll;
  EXPECT_EQ(supervised_text(encode(two_turns())), "second<｜end▁of▁sentence｜>");
  EXPECT_EQ(supervised_text(encode(two_turns(), all)), "first<｜end▁of▁sentence｜>second<｜end▁of▁sentence｜>");
}

TEST(Sample, AMessagesOwnTrainFlagWins) {
  SampleOptions all = options();
  all.supervise = Supervise::kAll;
  EXPECT_EQ(supervised_text(encode(two_turns(R"(,"train":true)"))), "first<｜end▁of▁sentence｜>second<｜end▁of▁sentence｜>");
  EXPECT_EQ(supervised_text(encode(two_turns(R"(,"train":true)", R"(,"train":false)"))), "first<｜end▁of▁sentence｜>");
  EXPECT_EQ(supervised_text(encode(two_turns("", R"(,"weight":0)"), all)), "first<｜end▁of▁sentence｜>");
  EXPECT_THAT(data_error([] { encode(two_turns("", R"(,"weight":0)")); }),
              AllOf(StartsWith("/data/d.jsonl:12"), HasSubstr("no token of this line is trained on")));
}

TEST(Sample, ALineThatDoesNotEndWithTheAssistantCannotBeTrainedOn) {
  SampleOptions all = options();
  all.supervise = Supervise::kAll;
  EXPECT_THAT(
      data_error([&] {
        encode(R"({"messages":[{"role":"user","content":"x"},{"role":"assistant","content":"y"},{"role":"user","content":"z"}]})",
               all);
      }),
      HasSubstr("the last message must be the assistant's"));
}

TEST(Sample, LabelsAreTheNextTokensOfTheSameSample) {
  SampleOptions all = options();
  all.supervise = Supervise::kAll;
  const Sample sample = encode(two_turns(), all);
  ASSERT_EQ(sample.labels.size(), sample.input_ids.size());
  int64_t counted = 0;
  for (int64_t t = 0; t + 1 < sample.tokens(); ++t) {
    if (sample.labels[t] == kIgnoreLabel) continue;
    EXPECT_EQ(sample.labels[t], sample.input_ids[t + 1]);
    ++counted;
  }
  EXPECT_EQ(sample.labels.back(), kIgnoreLabel);
  EXPECT_EQ(counted, sample.supervised_tokens);
}

TEST(Sample, PicturesTakeTheirSpanAndAreNeverTrainedOn) {
  // A picture in the answer: its positions are no targets, the text around it is.
  const std::string line = fmt::format(
      R"({{"messages":[{{"role":"user","content":"draw"}},{{"role":"assistant","content":[{{"type":"text","text":"a"}},{{"type":"image_url","image_url":"{}"}},{{"type":"text","text":"b"}}]}}]}})",
      golden_picture("easyvqa-test-0.png"));
  const Sample sample = encode(line);
  ASSERT_EQ(sample.images.size(), 1u);
  const SampleImage& image = sample.images[0];
  EXPECT_EQ(image.plan.tokens, 8);
  EXPECT_EQ(image.source_width, 64);
  EXPECT_EQ(image.canvas.width, image.plan.width);
  const std::vector<int32_t> types(sample.token_types.begin() + image.start, sample.token_types.begin() + image.start + 8);
  EXPECT_EQ(types, span_types(image.plan));
  for (int64_t t = image.start; t < image.start + 8; ++t) {
    EXPECT_EQ(sample.input_ids[t], tiny_tokenizer().token_to_id(kImagePlaceholder));
    EXPECT_EQ(sample.labels[t - 1], kIgnoreLabel);
  }
  EXPECT_EQ(supervised_text(sample), "a\n\n\n\nb<｜end▁of▁sentence｜>");
}

TEST(Sample, TheImageTokenMayHaveAnotherIdAndSpelling) {
  // As in files that spell the image token in another way: any added token serves.
  SampleOptions other = options();
  other.image_token_id = tiny_tokenizer().required_id("<｜title｜>");
  const std::string line = line_of("x", 1, golden_picture("easyvqa-test-0.png"));
  const Sample sample = encode(line, other);
  ASSERT_EQ(sample.images.size(), 1u);
  EXPECT_EQ(sample.images[0].start, encode(line).images[0].start);
  EXPECT_EQ(sample.input_ids[sample.images[0].start], *other.image_token_id);
  EXPECT_THAT(data_error([&] { encode(line_of("<｜title｜>", 1), other); }), HasSubstr("1 image tokens for 0 pictures"));
  other.image_token_id = 100;
  EXPECT_THAT(data_error([&] { encode(line, other); }), HasSubstr("the image token id 100"));
}

TEST(Sample, TextThatLooksLikeADataUriStaysText) {
  const Sample sample = encode(line_of("data:image/png;base64,YWJj", 1));
  EXPECT_TRUE(sample.images.empty());
  EXPECT_EQ(supervised_text(sample), "data:image/png;base64,YWJj<｜end▁of▁sentence｜>");
}

TEST(Sample, ABadPictureIsNamedWithFileLineAndNumber) {
  SampleOptions skip = options();
  skip.bad_image = BadInput::kSkip;
  const std::string line = line_of("x", 1, golden_picture("truncated.jpg"));
  EXPECT_THAT(data_error([&] { load(line, options()); }),
              AllOf(StartsWith("/data/d.jsonl:12: image 1 ("), HasSubstr("truncated.jpg")));
  const auto outcome = load(line, skip);
  EXPECT_EQ(outcome.kind, Kind::kBadImage);
  EXPECT_THAT(outcome.message, HasSubstr("/data/d.jsonl:12"));
  EXPECT_THAT(data_error([&] { load(line_of("x", 1, "absent.png"), options()); }), HasSubstr("/data/absent.png cannot be read"));
  EXPECT_THAT(data_error([&] { load(line_of("x", 1, "http://example.com/a.png"), options()); }), HasSubstr("not downloaded"));
}

TEST(Sample, ABadLineIsSkippedOrFatalAsConfigured) {
  SampleOptions skip = options();
  skip.bad_line = BadInput::kSkip;
  EXPECT_EQ(load("{", skip).kind, Kind::kBadLine);
  EXPECT_THAT(data_error([&] { load("{", options()); }),
              AllOf(StartsWith("/data/d.jsonl:12: not valid JSON"), HasSubstr("data.bad_line: skip")));
}

TEST(Sample, LengthPoliciesDropTruncateOrStop) {
  SampleOptions with = options();
  with.max_tokens = 20;
  const std::string line = line_of("an answer that is certainly longer than twenty tokens, as anyone can see who counts them", 2);
  const auto dropped = load(line, with);
  EXPECT_EQ(dropped.kind, Kind::kOverLong);
  EXPECT_THAT(dropped.message, AllOf(StartsWith("/data/d.jsonl:12"), HasSubstr("more than the 20")));

  with.over_long = OverLong::kError;
  EXPECT_THAT(data_error([&] { load(line, with); }), StartsWith("/data/d.jsonl:12"));

  with.over_long = OverLong::kTruncate;
  const auto cut = load(line, with);
  const Sample whole = encode(line);
  ASSERT_EQ(cut.kind, Kind::kSample);
  EXPECT_EQ(cut.sample.tokens(), 20);
  EXPECT_EQ(cut.sample.truncated_tokens, whole.tokens() - 20);
  EXPECT_EQ(cut.sample.labels.back(), kIgnoreLabel);
  EXPECT_EQ(cut.sample.input_ids, std::vector<int64_t>(whole.input_ids.begin(), whole.input_ids.begin() + 20));
  EXPECT_EQ(cut.sample.labels[18], cut.sample.input_ids[19]);

  EXPECT_EQ(load(line_of("x", 30), with).kind, Kind::kOverLong) << "nothing of the answer is left";
}

TEST(Sample, TruncationNeverCutsAPicture) {
  const std::string image = fmt::format(R"({{"type":"image_url","image_url":"{}"}})", golden_picture("easyvqa-test-0.png"));
  const std::string line = fmt::format(
      R"({{"messages":[{{"role":"user","content":"x"}},{{"role":"assistant","content":[{{"type":"text","text":"some words"}},{0},{0}]}}]}})",
      image);
  const Sample whole = encode(line);
  ASSERT_EQ(whole.images.size(), 2u);
  for (int64_t limit = 1; limit <= whole.tokens(); ++limit) {
    Sample cut = whole;
    truncate_sample(cut, limit);
    EXPECT_LE(cut.tokens(), limit);
    EXPECT_EQ(cut.tokens() + cut.truncated_tokens, whole.tokens());
    int64_t span_tokens = 0;
    for (const SampleImage& kept : cut.images) {
      EXPECT_LE(kept.start + kept.plan.tokens, cut.tokens());
      span_tokens += kept.plan.tokens;
    }
    EXPECT_EQ(std::ranges::count_if(cut.token_types, [](int32_t type) { return type != kSpanText; }), span_tokens) << limit;
  }
}

}  // namespace
}  // namespace hyperparallel::data
