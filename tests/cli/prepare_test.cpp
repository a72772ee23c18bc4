#include <gmock/gmock.h>

#include "cli/program.h"

namespace hyperparallel {
namespace {

using testing::HasSubstr;

TEST(Prepare, EasyVqaIsWrittenOnceAndFoundCompleteAfterwards) {
  const TemporaryFolder folder;
  const std::filesystem::path out = folder.path() / "easy_vqa";
  const ProgramResult first = run_program("prepare easy-vqa --out " + out.string());
  ASSERT_EQ(first.code, 0) << first.error;
  EXPECT_THAT(first.output, HasSubstr("preparing"));
  EXPECT_THAT(first.output, HasSubstr("9673"));
  const auto written = std::filesystem::last_write_time(out / "test.jsonl");
  const ProgramResult second = run_program("prepare easy-vqa --out " + out.string());
  EXPECT_EQ(second.code, 0);
  EXPECT_THAT(second.output, HasSubstr("complete already"));
  EXPECT_THAT(second.output, HasSubstr("9673"));
  EXPECT_EQ(std::filesystem::last_write_time(out / "test.jsonl"), written);
}

TEST(Prepare, WrongCallsAreExplained) {
  const TemporaryFolder folder;
  const std::string out = " --out " + (folder.path() / "out").string();
  const ProgramResult source = run_program("prepare easy-vqa --source " + folder.path().string() + out);
  EXPECT_EQ(source.code, 3);
  EXPECT_THAT(source.error, HasSubstr("easy-vqa package"));
  const ProgramResult used = run_program("prepare easy-vqa --out src");
  EXPECT_EQ(used.code, 2);
  EXPECT_THAT(used.error, HasSubstr("src: it exists"));
  EXPECT_EQ(run_program("prepare easy-vqa").code, 2);
  const ProgramResult kind = run_program("prepare hard-vqa");
  EXPECT_EQ(kind.code, 2);
  EXPECT_THAT(kind.error, HasSubstr("easy-vqa"));
}

}  // namespace
}  // namespace hyperparallel
