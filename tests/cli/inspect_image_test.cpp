#include <gmock/gmock.h>

#include "cli/program.h"

namespace hyperparallel {
namespace {

using testing::HasSubstr;

const std::string kImages = "tests/golden/data/images/";
const std::string kSmall = " --min-pixels 3136 --max-image-tokens 64";

TEST(InspectImage, ShowsSizePlanFitAndLayout) {
  const ProgramResult result = run_program("inspect image " + kImages + "easyvqa-test-0.png" + kSmall);
  EXPECT_EQ(result.code, 0) << result.error;
  for (const char* part : {"decoded      64 x 64", "canvas       70 x 70", "fit          70 x 70", "patches      25",
                           "tokens       8 ", "  S\n  IIN\n  IIN\n  E\n"}) {
    EXPECT_THAT(result.output, HasSubstr(part));
  }
}

TEST(InspectImage, TakesLimitsFromAModelConfigAndLetsTheCommandLineWin) {
  const std::string config = " --config tests/golden/released-config.json";
  EXPECT_THAT(run_program("inspect image " + kImages + "easyvqa-test-0.png" + config).output, HasSubstr("tokens       184 "));
  EXPECT_THAT(run_program("inspect image " + kImages + "easyvqa-test-0.png" + config + kSmall).output,
              HasSubstr("tokens       8 "));
}

TEST(InspectImage, FollowsOrIgnoresTheOrientation) {
  const ProgramResult applied = run_program("inspect image " + kImages + "exif6.jpg");
  EXPECT_THAT(applied.output, HasSubstr("orientation  6"));
  EXPECT_THAT(applied.output, HasSubstr("decoded      64 x 96"));
  EXPECT_THAT(run_program("inspect image --exif ignore " + kImages + "exif6.jpg").output, HasSubstr("decoded      96 x 64"));
}

TEST(InspectImage, WritesTheCanvas) {
  const TemporaryFolder folder;
  const std::string canvas = (folder.path() / "canvas.png").string();
  EXPECT_EQ(run_program("inspect image " + kImages + "tall-13x700.png --canvas " + canvas).code, 0);
  EXPECT_THAT(run_program("inspect image " + canvas).output, HasSubstr("decoded      84 x 4004"));
}

TEST(InspectImage, RefusesInTheUsersWords) {
  const ProgramResult truncated = run_program("inspect image " + kImages + "truncated.jpg");
  EXPECT_EQ(truncated.code, 3);
  EXPECT_THAT(truncated.error, HasSubstr("truncated.jpg"));
  const ProgramResult absent = run_program("inspect image nowhere.png");
  EXPECT_EQ(absent.code, 3);
  EXPECT_THAT(absent.error, HasSubstr("nowhere.png"));
  const ProgramResult thin = run_program("inspect image --min-pixels 1 --max-image-tokens 4 " + kImages + "strip-1x600.png");
  EXPECT_EQ(thin.code, 3);
  EXPECT_THAT(thin.error, HasSubstr("strip-1x600.png: a picture of 1 x 600 pixels is too thin"));
  const ProgramResult kind = run_program("inspect pictures");
  EXPECT_EQ(kind.code, 2);
  EXPECT_THAT(kind.error, HasSubstr("image"));
}

}  // namespace
}  // namespace hyperparallel
