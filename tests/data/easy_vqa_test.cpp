// Preparing easy-VQA: the real package of the project's .venv, and small made-up ones for what can go wrong.
#include "data/easy_vqa.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstdlib>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "data/image_fixtures.h"

namespace hyperparallel::data {
namespace {

using nlohmann::json;
using Path = std::filesystem::path;
using testing::HasSubstr;

class EasyVqa : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "easy-vqa-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // A package with `pictures` training pictures, two questions each, and one test picture.
  Path make_package(int pictures, const std::string& answer = "red") {
    const Path package = folder_ / "package";
    std::filesystem::remove_all(package);
    json train = json::array();
    for (int n = 0; n < pictures; ++n) {
      train.push_back({"what color is the shape?", answer, n});
      train.push_back({"is there a \"circle\"?", "yes", n});
      write_picture(package / "train/images", n);
    }
    file::write(package / "train/questions.json", train.dump());
    write_picture(package / "test/images", 0);
    file::write(package / "test/questions.json", json::array({{"what shape is present?", "circle", 0}}).dump());
    return package;
  }

  Path folder_;

 private:
  static void write_picture(const Path& folder, int n) {
    file::create_folders(folder);
    const std::vector<uint8_t> png = encode_png({2, 2, std::vector<uint8_t>(12, static_cast<uint8_t>(n))});
    file::write(folder / fmt::format("{}.png", n), {reinterpret_cast<const char*>(png.data()), png.size()});
  }
};

TEST_F(EasyVqa, RealPackageGivesTheKnownCountsAndTheSampleLines) {
  const std::optional<Path> source = find_easy_vqa();
  ASSERT_TRUE(source) << "the tests need the package easy-vqa in .venv: scripts/setup.sh installs it";
  const Path out = folder_ / "out";
  const std::vector<EasyVqaSplit> splits = prepare_easy_vqa(*source, out);
  ASSERT_EQ(splits.size(), 3U);
  EXPECT_EQ(splits[0].pictures, 3800);
  EXPECT_EQ(splits[1].pictures, 200);
  EXPECT_EQ(splits[2].pictures, 1000);
  EXPECT_EQ(splits[0].questions() + splits[1].questions(), 38575);
  EXPECT_EQ(splits[0].yes_no + splits[1].yes_no, 28407);
  EXPECT_EQ(splits[2].questions(), 9673);
  EXPECT_EQ(splits[2].yes_no, 7136);
  EXPECT_EQ(prepared_easy_vqa(out), splits);

  // Questions for a shape once more; a folder of an earlier version gets them.
  std::filesystem::remove(out / "train-shape.jsonl");
  EXPECT_EQ(prepared_easy_vqa(out), splits);
  const std::vector<json> shapes = read_json_lines(out / "train-shape.jsonl");
  EXPECT_EQ(static_cast<int64_t>(shapes.size()), splits[0].shape);
  for (const json& line : shapes) EXPECT_EQ(easy_vqa_answer_type(line["messages"][1]["content"].get<std::string>()), "shape");

  // The sample numbers its own lines; all after the id is the same, byte for byte.
  const auto after_id = [](const std::string& line) { return line.substr(line.find("\"messages\"")); };
  std::set<std::string> lines;
  for (const char* name : {"train", "validation", "test"}) {
    std::ifstream file(out / fmt::format("{}.jsonl", name));
    for (std::string line; std::getline(file, line);) lines.insert(after_id(line));
  }
  std::ifstream sample(kGoldenData / "easy-vqa-sample.jsonl");
  for (std::string line; std::getline(sample, line);) EXPECT_TRUE(lines.contains(after_id(line))) << line;
  for (const char* name : {"easyvqa-train-3.png", "easyvqa-test-2.png"}) {
    EXPECT_EQ(read_bytes(out / "images" / name), read_bytes(kGoldenData / "images" / name));
  }
}

TEST_F(EasyVqa, SplitsByPictureAndNamesEveryLine) {
  const std::vector<EasyVqaSplit> splits = prepare_easy_vqa(make_package(40), folder_ / "out/");
  EXPECT_EQ(splits[0], (EasyVqaSplit{"train", 38, 38, 0, 38}));
  EXPECT_EQ(splits[1], (EasyVqaSplit{"validation", 2, 2, 0, 2}));
  EXPECT_EQ(splits[2], (EasyVqaSplit{"test", 1, 0, 1, 0}));
  std::vector<std::string> ids, pictures;
  for (const json& line : read_json_lines(folder_ / "out/validation.jsonl")) {
    ids.push_back(line["id"]);
    pictures.push_back(line["messages"][0]["content"][0]["image_url"]["url"]);
    EXPECT_TRUE(std::filesystem::exists(folder_ / "out" / pictures.back()));
  }
  EXPECT_EQ(ids, (std::vector<std::string>{"easyvqa-train-38", "easyvqa-train-39", "easyvqa-train-78", "easyvqa-train-79"}));
  EXPECT_EQ(pictures[0], "images/easyvqa-train-19.png");
  EXPECT_EQ(read_json_lines(folder_ / "out/train.jsonl")[1]["messages"][0]["content"][1]["text"], "is there a \"circle\"?");
}

// The N-th change of the file system fails.
class FailingSystem : public file::System {
 public:
  explicit FailingSystem(int at) : left_(at) {}
  int open(const char* path, int flags, mode_t mode) override { return fails() ? -1 : System::open(path, flags, mode); }
  ssize_t write(int descriptor, const void* bytes, size_t size) override {
    return fails() ? -1 : System::write(descriptor, bytes, size);
  }
  int syncfs(int descriptor) override { return fails() ? -1 : System::syncfs(descriptor); }
  int rename(const char* from, const char* to) override { return fails() ? -1 : System::rename(from, to); }
  int mkdir(const char* path, mode_t mode) override { return fails() ? -1 : System::mkdir(path, mode); }
  bool failed() const { return left_ < 0; }

 private:
  bool fails() {
    if (left_-- > 0) return false;
    left_ = -1;
    errno = ENOSPC;
    return true;
  }
  int left_;
};

TEST_F(EasyVqa, WhateverFailsTheFolderIsWholeOrAbsent) {
  const Path package = make_package(3);
  const Path out = folder_ / "out";
  for (int at = 0;; ++at) {
    ASSERT_LT(at, 1000);
    FailingSystem system(at);
    try {
      const file::ScopedSystem replaced(system);
      prepare_easy_vqa(package, out);
    } catch (const file::FileError&) {
    }
    const bool whole = prepared_easy_vqa(out).has_value();
    ASSERT_EQ(std::filesystem::exists(out), whole) << "stopped at change " << at;
    if (!system.failed()) break;
    if (whole) std::filesystem::remove_all(out);  // failed while making the finished rename durable
  }
  EXPECT_EQ(prepared_easy_vqa(out)->at(0).pictures, 3);
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out.partial"));
}

TEST_F(EasyVqa, AFolderInUseIsLeftAlone) {
  const Path out = folder_ / "out";
  file::create_folders(out);
  file::write(out / "notes.txt", "mine");
  EXPECT_THROW(prepare_easy_vqa(make_package(1), out), UsageError);
  EXPECT_EQ(file::read(out / "notes.txt"), "mine");
  EXPECT_FALSE(prepared_easy_vqa(out));
}

TEST_F(EasyVqa, WrongPackagesAreRefusedWithTheirFile) {
  const auto message = [&](const Path& package) -> std::string {
    try {
      prepare_easy_vqa(package, folder_ / "out");
    } catch (const DataError& error) {
      return error.what();
    }
    return "accepted";
  };
  EXPECT_THAT(message(folder_), HasSubstr("neither the data folder"));
  EXPECT_THAT(message(make_package(1, "purple")),
              HasSubstr("questions.json: entry 0 is [\"what color is the shape?\",\"purple\",0]"));
  Path package = make_package(2);
  std::filesystem::remove(package / "train/images/1.png");
  EXPECT_THAT(message(package), HasSubstr("train/images/1.png"));
  package = make_package(2);
  file::write(package / "train/images/1.png", "no picture");
  EXPECT_THAT(message(package), HasSubstr("train/images/1.png: no picture"));
  package = make_package(2);
  file::write(package / "test/questions.json", "{");
  EXPECT_THAT(message(package), HasSubstr("must be a JSON array"));
  EXPECT_FALSE(std::filesystem::exists(folder_ / "out"));
}

TEST(EasyVqaAnswers, HaveTypes) {
  EXPECT_EQ(easy_vqa_answer_type("no"), "yes/no");
  EXPECT_EQ(easy_vqa_answer_type("triangle"), "shape");
  EXPECT_EQ(easy_vqa_answer_type("teal"), "color");
  EXPECT_EQ(easy_vqa_answer_type("Teal"), "other");
}

}  // namespace
}  // namespace hyperparallel::data
