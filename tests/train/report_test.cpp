#include "train/report.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "support/scratch.h"
#include "train/metrics.h"

namespace hyperparallel::train {
namespace {

using Json = nlohmann::ordered_json;

void write_steps(const std::filesystem::path& folder, int64_t count, const std::map<std::string, double>& extra = {}) {
  std::string text;
  for (int64_t step = 1; step <= count; ++step) {
    text +=
        to_json({.step = step, .loss = 5.0 / static_cast<double>(step), .tokens = 100, .seconds = 0.5, .extra = extra}) + "\n";
  }
  file::write(folder / "metrics.jsonl", text);
}

Json chart(const Json& data, const std::string& title) {
  for (const Json& chart : data.at("charts")) {
    if (chart.at("title") == title) return chart;
  }
  return nullptr;
}

std::string golden_picture(const std::string& name) {
  return HP_SOURCE_DIR "/tests/golden/data/images/" + name;
}

TEST(Report, OneStepIsEnough) {
  const Scratch scratch;
  write_steps(scratch.path(), 1);
  const Json loss = chart(report_data(scratch.path()), "Loss").at("series")[0];
  EXPECT_EQ(loss.at("x"), Json::parse("[1]"));
  EXPECT_EQ(loss.at("y"), Json::parse("[5]"));
  EXPECT_FALSE(loss.contains("lo"));
}

TEST(Report, LongRunsKeepMeanLowestAndHighest) {
  const Scratch scratch;
  write_steps(scratch.path(), 10000);
  const Json loss = chart(report_data(scratch.path()), "Loss").at("series")[0];
  ASSERT_EQ(loss.at("x").size(), kReportPoints);
  EXPECT_EQ(loss.at("x").back(), 10000);
  EXPECT_EQ(loss.at("hi")[0], 5);  // the first point holds steps 1 to 12
  EXPECT_NEAR(loss.at("lo")[0], 5.0 / 12, 1e-6);
  EXPECT_GT(loss.at("hi")[0], loss.at("y")[0]);
  EXPECT_LT(loss.at("lo")[0], loss.at("y")[0]);
}

TEST(Report, ExpertLoadIsSplitByModalityInTheOrderOfLayers) {
  const Scratch scratch;
  write_steps(scratch.path(), 2,
              {{"moe/load_max_over_mean", 1.5},
               {"moe/load_max_over_mean/layer.2/text", 1},
               {"moe/load_max_over_mean/layer.10/text", 2},
               {"moe/load_max_over_mean/layer.2/image", 3},
               {"data/epoch", 1}});
  const Json data = report_data(scratch.path());
  const Json text = chart(data, "Expert load, text tokens").at("series");
  ASSERT_EQ(text.size(), 2);
  EXPECT_EQ(text[0].at("name"), "layer 2");
  EXPECT_EQ(text[1].at("name"), "layer 10");
  EXPECT_EQ(chart(data, "Expert load, image tokens").at("series").size(), 1);
  EXPECT_EQ(chart(data, "Expert load").at("series")[0].at("name"), "all layers");
  EXPECT_FALSE(chart(data, "data/epoch").is_null());
}

TEST(Report, EvaluationStandsBesideItsBaseline) {
  const Scratch scratch;
  write_steps(scratch.path(), 1);
  file::write(scratch / "eval.json",
              R"({"exact_match": 0.5, "count": 8, "baseline": {"exact_match": 0.25, "by_type": {"color": 0.1}},
                                         "by_type": {"color": {"exact_match": 0.6, "count": 5}, "shape": 0.4}})");
  const Json rows = report_data(scratch.path()).at("eval").at("rows");
  EXPECT_EQ(rows, Json::parse(R"([{"type": "all answers", "exact_match": 0.5, "baseline": 0.25, "count": 8},
                                  {"type": "color", "exact_match": 0.6, "baseline": 0.1, "count": 5},
                                  {"type": "shape", "exact_match": 0.4, "baseline": null, "count": null}])"));
}

TEST(Report, PicturesAreInsideThePageAndLargeOnesShrink) {
  const Scratch scratch;
  write_steps(scratch.path(), 1);
  const Json examples = {
      {{"images",
        {golden_picture("easyvqa-test-0.png"), "file://" + golden_picture("wide-3000x50.png"), golden_picture("cmyk.jpg")}},
       {"question", "?"},
       {"expected", "yes"},
       {"predicted", "no"}},
      {{"images", {"data:image/png;base64,AAAA", "missing.png"}}, {"predicted", "a"}, {"expected", "A"}, {"correct", true}}};
  file::write(scratch / "samples.json", examples.dump());
  const Json shown = report_data(scratch.path()).at("examples");
  ASSERT_EQ(shown.size(), 2);
  ASSERT_EQ(shown[0].at("pictures").size(), 3);
  for (const auto& picture : shown[0].at("pictures")) EXPECT_THAT(picture.get<std::string>(), testing::StartsWith("data:image/"));
  EXPECT_EQ(shown[0].at("correct"), false);
  EXPECT_EQ(shown[1].at("pictures"), Json::parse(R"(["data:image/png;base64,AAAA"])"));
  EXPECT_EQ(shown[1].at("correct"), true);
}

TEST(Report, PageIsSelfContainedAndTextCannotEndItsScript) {
  const Scratch scratch;
  write_steps(scratch.path(), 3);
  write_run_facts(scratch.path(), {{"parameters", "1.6 M"}, {"note", "</script><b>x</b><!--"}});
  file::write(scratch / "config.yaml", "model: </script>\n");
  const std::string page = file::read(write_report(scratch.path()));
  EXPECT_THAT(page, testing::StartsWith("<!doctype html>"));
  EXPECT_THAT(page, testing::Not(testing::HasSubstr("<b>x</b>")));
  for (const char* outside : {"<link", "src=\"http", "href=", "@import", "fetch("})
    EXPECT_THAT(page, testing::Not(testing::HasSubstr(outside)));
  // The data between its script tags is whole JSON.
  const std::string open = "<script id=\"data\" type=\"application/json\">";
  const size_t begin = page.find(open) + open.size();
  const Json data = Json::parse(page.substr(begin, page.find("</script>", begin) - begin));
  EXPECT_EQ(data.at("facts").at("note"), "</script><b>x</b><!--");
  EXPECT_EQ(data.at("config"), "model: </script>\n");
}

TEST(Report, WrongFoldersAndBrokenFilesAreNamed) {
  const Scratch scratch;
  EXPECT_THROW(report_data(scratch.path()), UsageError);
  write_steps(scratch.path(), 1);
  file::write(scratch / "eval.json", "{\"exact_match\": ");
  try {
    report_data(scratch.path());
    FAIL();
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("eval.json is not JSON"));
  }
  file::write(scratch / "eval.json", R"({"exact_match": "high"})");
  EXPECT_THROW(report_data(scratch.path()), DataError);
}

}  // namespace
}  // namespace hyperparallel::train
