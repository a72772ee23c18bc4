#include <gtest/gtest.h>

#include "program.h"

namespace hyperparallel {
namespace {

namespace fs = std::filesystem;
const fs::path kCase = fs::path(HP_SOURCE_DIR) / "tests/golden/model/swa-only";

TEST(Verify, PrintsARowPerTensorAndEndsWithTheVerdict) {
  const ProgramResult result = run_program("verify '" + kCase.string() + "'");
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_NE(result.output.find("\ngrad.lm_head.weight "), std::string::npos);
  const std::string last = result.output.substr(result.output.rfind("verify: "));
  EXPECT_EQ(last.rfind("verify: PASS worst=", 0), 0u) << last;
  EXPECT_NE(last.find(" error="), std::string::npos);
}

TEST(Verify, AChangedWeightFailsWithItsOwnExitCode) {
  const TemporaryFolder folder;
  fs::copy(kCase, folder.path(), fs::copy_options::recursive);
  std::fstream weights(folder.path() / "weights.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  weights.seekp(-4, std::ios::end);
  weights.write("\0\0\x80\x3f", 4);  // the last weight becomes 1
  weights.close();
  const ProgramResult result = run_program("verify --failures '" + folder.path().string() + "'");
  EXPECT_EQ(result.code, 8) << result.error;
  EXPECT_NE(result.output.find("verify: FAIL worst="), std::string::npos) << result.output;
}

TEST(Verify, AFolderThatIsNoCaseIsRefusedByName) {
  const TemporaryFolder folder;
  const ProgramResult empty = run_program("verify '" + folder.path().string() + "'");
  EXPECT_EQ(empty.code, 4) << empty.error;
  EXPECT_NE(empty.error.find("case.safetensors"), std::string::npos) << empty.error;
  EXPECT_EQ(run_program("verify").code, 2);
}

TEST(Verify, OnRanksPrintsOneReportAndEndsWithItsCode) {
  const std::string cases = HP_SOURCE_DIR "/tests/golden/model/";
  const ProgramResult result = run_program("verify " + cases + "csa2-small --ranks 2 --parallel.tp=2");
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_NE(result.output.find("\ngrad.lm_head.weight "), std::string::npos);
  EXPECT_EQ(result.output.find("verify: PASS"), result.output.rfind("verify: "));
  const ProgramResult other = run_program("verify --failures " + cases + "vlm-tiny --ranks=2 --parallel.cp 2 --parallel.ep 2");
  EXPECT_EQ(other.code, 0) << other.output << other.error;
  const ProgramResult degree = run_program("verify " + cases + "csa2-small --ranks 4 --parallel.tp=4");
  EXPECT_EQ(degree.code, 2);
  EXPECT_NE(degree.error.find("parallel.tp 4 does not divide o_groups 2; accepted: 1, 2"), std::string::npos) << degree.error;
}

TEST(Verify, AWrongWeightFailsOnEveryRank) {
  const TemporaryFolder folder;
  fs::copy(kCase, folder.path(), fs::copy_options::recursive);
  std::fstream weights(folder.path() / "weights.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  weights.seekp(-4, std::ios::end);
  weights.write("\0\0\x80\x3f", 4);
  weights.close();
  const ProgramResult result = run_program("verify --failures '" + folder.path().string() + "' --ranks 2 --parallel.cp=2");
  EXPECT_EQ(result.code, 8) << result.error;
}

}  // namespace
}  // namespace hyperparallel
