// Plans, decoded pictures, canvases and patches against tests/golden/data, bit for bit.
#include <gtest/gtest.h>

#include <bit>
#include <cstring>

#include "base/error.h"
#include "data/image_fixtures.h"

namespace hyperparallel::data {
namespace {

using nlohmann::json;

ImageLimits limits_of(const std::string& config) {
  ImageLimits limits;
  if (config == "released") return limits;
  limits.min_pixels = 3136;
  limits.max_image_tokens = 64;
  if (config == "small-wh4") limits.max_wh_ratio = 4;
  return limits;
}

using Numbers = std::vector<int64_t>;

TEST(ImagePlan, EveryGoldenSizeGetsItsPlanOrIsRefused) {
  for (const json& line : read_json_lines(kGoldenData / "image-plans.jsonl")) {
    SCOPED_TRACE(line.dump());
    ImageLimits limits;
    limits.min_pixels = line["min_pixels"];
    limits.max_image_tokens = line["max_image_tokens"];
    if (!line["max_wh_ratio"].is_null()) limits.max_wh_ratio = line["max_wh_ratio"].get<double>();
    if (line["error"]) {
      EXPECT_THROW(plan_image(line["width"], line["height"], limits), DataError);
      continue;
    }
    const ImagePlan plan = plan_image(line["width"], line["height"], limits);
    EXPECT_EQ((Numbers{plan.llm_rows, plan.llm_columns, plan.height, plan.width, plan.tokens}), line["plan"].get<Numbers>());
    EXPECT_EQ((Numbers{plan.fit_width, plan.fit_height, plan.fit_left, plan.fit_top}), line["fit"].get<Numbers>());
  }
}

class GoldenImage : public testing::TestWithParam<json> {};

// The golden of 16-bit grey holds what Pillow does (everything above 255 white) as well; we take the high byte.
std::vector<json> preprocessing_lines() {
  std::vector<json> lines = read_json_lines(kGoldenData / "image-preprocess.jsonl");
  std::erase_if(lines, [](const json& line) { return line["file"] == "images/gray16.png" && line["variant"] == "reference"; });
  return lines;
}

std::string test_name(const testing::TestParamInfo<json>& info) {
  return fmt::format("Line{}", info.param["id"].get<int>());
}

TEST_P(GoldenImage, DecodesFitsAndSplitsBitForBit) {
  const json& line = GetParam();
  SCOPED_TRACE(line.dump());
  const std::string file = line["file"];
  const std::string variant = line["variant"];
  const ExifOrientation orientation = variant == "exif-applied" ? ExifOrientation::kApply : ExifOrientation::kIgnore;
  const std::vector<uint8_t> bytes = read_bytes(kGoldenData / file);
  if (line.value("error", false)) {
    try {
      decode_image(bytes, orientation, file);
      FAIL() << "accepted";
    } catch (const DataError& error) {
      EXPECT_TRUE(std::string(error.what()).starts_with(file)) << error.what();
    }
    return;
  }
  const RgbImage image = decode_image(bytes, orientation, file);
  ASSERT_EQ((Numbers{image.width, image.height}), (Numbers{line["width"], line["height"]}));
  EXPECT_EQ(sha256(image.pixels), line["rgb_sha256"]);

  const ImagePlan plan = plan_image(image.width, image.height, limits_of(line["config"]));
  const json& expected = line["plan"];
  EXPECT_EQ((Numbers{plan.llm_rows, plan.llm_columns, plan.height, plan.width, plan.patch_rows, plan.patch_columns, plan.tokens}),
            (Numbers{expected["n_llm_h"], expected["n_llm_w"], expected["height"], expected["width"], expected["n_vit_h"],
                     expected["n_vit_w"], expected["tokens"]}));
  const json& fit = line["fit"];
  EXPECT_EQ((Numbers{plan.fit_width, plan.fit_height, plan.fit_left, plan.fit_top}),
            (Numbers{fit["width"], fit["height"], fit["left"], fit["top"]}));

  const RgbImage canvas = fit_image(image, plan);
  EXPECT_EQ(sha256(canvas.pixels), line["canvas_sha256"]);
  if (line.contains("canvas")) {
    static const Tensors canvases(kGoldenData / "image-canvas.safetensors");
    EXPECT_EQ((Numbers{canvas.height, canvas.width, 3}), canvases.shape(line["canvas"]));
    EXPECT_EQ(canvas.pixels, canvases.bytes(line["canvas"]));
  }
  std::vector<uint16_t> bits;
  for (const float value : image_patches(canvas, 14)) bits.push_back(bfloat16_bits(value));
  EXPECT_EQ(bits.size(), expected["patches"].get<size_t>() * 588);
  EXPECT_EQ(sha256(bits), line["patches_bf16_sha256"]);
}

INSTANTIATE_TEST_SUITE_P(EveryLine, GoldenImage, testing::ValuesIn(preprocessing_lines()), test_name);

TEST(ImagePatches, NormaliseEveryByteAsTheGoldenTable) {
  const Tensors table(kGoldenData / "image-normalise-lut.safetensors");
  const std::vector<uint8_t> bits = table.bytes("bf16_bits");
  const std::vector<uint8_t> floats = table.bytes("f32");
  for (size_t v = 0; v < 256; ++v) {
    const RgbImage pixel{1, 1, std::vector<uint8_t>(3, static_cast<uint8_t>(v))};
    const float value = image_patches(pixel, 1).front();
    uint16_t expected_bits = 0;
    float expected = 0;
    std::memcpy(&expected_bits, bits.data() + 2 * v, 2);
    std::memcpy(&expected, floats.data() + 4 * v, 4);
    EXPECT_EQ(bfloat16_bits(value), expected_bits) << v;
    EXPECT_EQ(std::bit_cast<uint32_t>(value) & 0xFFFF, 0U) << v;
    EXPECT_NEAR(value, expected, 1.0 / 256) << v;
  }
}

TEST(ImagePatches, AreChannelMajorInReadingOrder) {
  RgbImage canvas{4, 2, {}};
  for (int i = 0; i < 24; ++i) canvas.pixels.push_back(static_cast<uint8_t>(10 * i));
  const std::vector<float> patches = image_patches(canvas, 2);
  std::vector<int> bytes;
  for (const float value : patches) bytes.push_back(static_cast<int>(std::lround((value + 1) * 127.5F)));
  const std::vector<int> expected = {0,  30, 120, 150, 10, 40,  130, 160, 20, 50,  140, 170,   // left patch: red, green, blue
                                     60, 90, 180, 210, 70, 100, 190, 220, 80, 110, 200, 230};  // right patch
  ASSERT_EQ(bytes.size(), expected.size());
  for (size_t i = 0; i < bytes.size(); ++i) EXPECT_NEAR(bytes[i], expected[i], 1) << i;
}

TEST(ImageSpan, RolesFollowTheGrid) {
  ImageLimits limits;
  limits.min_pixels = 3136;
  limits.max_image_tokens = 64;
  EXPECT_EQ(span_types(plan_image(40, 100, limits)), (std::vector<int32_t>{0, 1, 2, 1, 2, 1, 2, 3}));
  EXPECT_EQ(span_types(plan_image(64, 64, limits)), (std::vector<int32_t>{0, 1, 1, 2, 1, 1, 2, 3}));
}

}  // namespace
}  // namespace hyperparallel::data
