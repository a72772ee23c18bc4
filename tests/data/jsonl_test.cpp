#include "data/jsonl.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "data_fixtures.h"

namespace hyperparallel::data {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

std::vector<std::pair<int64_t, std::string>> lines_of(const std::string& bytes) {
  const Scratch folder;
  const JsonlFile file(write(folder, "d.jsonl", bytes));
  EXPECT_EQ(file.bytes(), static_cast<int64_t>(bytes.size()));
  std::vector<std::pair<int64_t, std::string>> lines;
  for (int64_t i = 0; i < file.samples(); ++i) lines.emplace_back(file.line_number(i), file.read(i));
  return lines;
}

TEST(JsonlFile, LinesKeepTheirNumbersWhateverTheirEnds) {
  EXPECT_THAT(lines_of("a\nb\n"), ElementsAre(Pair(1, "a"), Pair(2, "b")));
  EXPECT_THAT(lines_of("a\nb"), ElementsAre(Pair(1, "a"), Pair(2, "b"))) << "last line without its end";
  EXPECT_THAT(lines_of("a\r\n\r\nb\r\n"), ElementsAre(Pair(1, "a\r"), Pair(3, "b\r"))) << "CRLF is white space of JSON";
  EXPECT_THAT(lines_of("\n \t\na\n\n"), ElementsAre(Pair(3, "a"))) << "blank lines are no samples";
  EXPECT_THAT(lines_of("\xEF\xBB\xBF"
                       "a\nb"),
              ElementsAre(Pair(1, "a"), Pair(2, "b")))
      << "a byte order mark at the start";
}

TEST(JsonlFile, LinesLongerThanTheReadBufferAreFoundWhole) {
  const std::string a(3 << 20, 'a'), b((1 << 20) - 1, 'b'), c(5, 'c');
  EXPECT_THAT(lines_of(a + "\n" + b + "\n" + c), ElementsAre(Pair(1, a), Pair(2, b), Pair(3, c)));
}

TEST(JsonlFile, FilesWithoutSamplesAreRefusedByName) {
  const Scratch folder;
  const auto refusal = [](const std::string& path) { return data_error([&] { JsonlFile file(path); }); };
  EXPECT_THAT(refusal((folder / "absent.jsonl").string()), HasSubstr("absent.jsonl: cannot be opened"));
  EXPECT_THAT(refusal(write(folder, "empty.jsonl", "")), HasSubstr("empty.jsonl: the file has no samples"));
  EXPECT_THAT(refusal(write(folder, "blank.jsonl", "\xEF\xBB\xBF\n \n")), HasSubstr("no samples"));
}

TEST(JsonlFile, TheHashTellsFilesOfOneSizeApart) {
  const Scratch folder;
  const JsonlFile a(write(folder, "a", "x1\n")), b(write(folder, "b", "x2\n")), same(write(folder, "c", "x1\n"));
  EXPECT_NE(a.hash(), b.hash());
  EXPECT_EQ(a.hash(), same.hash());
}

TEST(JsonlFile, AFileThatBecameShorterIsAnErrorWithItsLine) {
  const Scratch folder;
  const JsonlFile file(write(folder, "d.jsonl", "first\nsecond\n"));
  std::filesystem::resize_file(folder / "d.jsonl", 8);
  EXPECT_EQ(file.read(0), "first");
  EXPECT_THAT(data_error([&] { file.read(1); }), HasSubstr("d.jsonl:2"));
}

}  // namespace
}  // namespace hyperparallel::data
