#include "data/image_url.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "data_fixtures.h"

namespace hyperparallel::data {
namespace {

using ::testing::HasSubstr;

std::string read(const std::string& url, const std::string& folder = "/nowhere") {
  const std::vector<uint8_t> bytes = read_image_url(url, folder);
  return {bytes.begin(), bytes.end()};
}

std::string refusal(const std::string& url, const std::string& folder = "/nowhere") {
  return data_error([&] { read(url, folder); });
}

TEST(ImageUrl, PathsCountFromTheFolderOfTheData) {
  const Scratch folder;
  const std::string path = write(folder, "a b.png", "bytes");
  EXPECT_EQ(read("a b.png", (folder / "").string()), "bytes");
  EXPECT_EQ(read("./a b.png", (folder / ".").string()), "bytes");
  EXPECT_EQ(read(path), "bytes") << "absolute";
  EXPECT_EQ(read("file://" + (folder / "a%20b.png").string()), "bytes");
  EXPECT_EQ(read("FILE://localhost" + (folder / "a%20b.png").string()), "bytes");
  EXPECT_THAT(refusal("c.png", (folder / "").string()), HasSubstr("c.png cannot be read"));
  EXPECT_THAT(refusal(".", (folder / "").string()), HasSubstr("is a folder"));
  EXPECT_THAT(refusal("file://server/a.png"), HasSubstr("no absolute path of this machine"));
}

TEST(ImageUrl, NothingIsDownloaded) {
  EXPECT_THAT(refusal("http://example.com/a.png"), HasSubstr("not downloaded"));
  EXPECT_THAT(refusal("HTTPS://example.com/a.png"), HasSubstr("not downloaded"));
  EXPECT_THAT(refusal("s3://bucket/a.png"), HasSubstr("not downloaded"));
}

TEST(ImageUrl, DataUrisAreReadWithParametersUpperCaseAndWithoutPadding) {
  EXPECT_EQ(read("data:image/png;base64,YWJj"), "abc");
  EXPECT_EQ(read("DATA:Image/PNG;Base64,YWJj"), "abc");
  EXPECT_EQ(read("data:image/svg+xml;charset=utf-8;name=a.png;base64,YWI="), "ab");
  EXPECT_EQ(read("data:image/png;base64,YWI"), "ab");
  EXPECT_EQ(read("data:image/png;base64,YQ"), "a");
  EXPECT_EQ(read("data:image/png;base64,YQ=="), "a");
  EXPECT_EQ(read("data:;base64,YQ=="), "a");
  EXPECT_EQ(read("data:image/png;base64,"), "");
  EXPECT_EQ(read("data:image/png;base64,YW\nJj "), "abc");
  EXPECT_EQ(read("data:image/png;base64,-_-_"), read("data:image/png;base64,+/+/")) << "the url-safe alphabet";
  EXPECT_THAT(refusal("data:image/png;base64,Y"), HasSubstr("cut"));
  EXPECT_THAT(refusal("data:image/png;base64,YW?j"), HasSubstr("character 3"));
  EXPECT_THAT(refusal("data:image/png,rawdata"), HasSubstr("not in base64"));
  EXPECT_THAT(refusal("data:image/png;base64"), HasSubstr("no comma"));
  EXPECT_THAT(refusal("data:text/plain;base64,YWJj"), HasSubstr("`text/plain`, not an image"));
}

TEST(ImageUrl, TheNameOfADataUriLeavesItsPayloadOut) {
  EXPECT_EQ(image_name("data:image/png;base64," + std::string(1000, 'A')), "data:image/png;base64");
  EXPECT_EQ(image_name("pictures/a.png"), "pictures/a.png");
}

}  // namespace
}  // namespace hyperparallel::data
