// Extreme shapes, orientations, colour spaces and damaged files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <thread>
#include <vips/vips8>

#include "base/error.h"
#include "data/image_fixtures.h"

namespace hyperparallel::data {
namespace {

using testing::HasSubstr;
using vips::VImage;

constexpr ImageLimits kLowestBudget{.min_pixels = 1, .max_image_tokens = 4};

// A picture without symmetry: all orientations of it differ, and so do its channels.
RgbImage asymmetric_picture() {
  RgbImage image{24, 16, {}};
  for (int y = 0; y < 16; ++y) {
    for (int x = 0; x < 24; ++x) {
      for (const int value : {x * 10, y * 15, (x < 12 && y < 8) ? 200 : 30}) image.pixels.push_back(static_cast<uint8_t>(value));
    }
  }
  return image;
}

VImage to_vips(const RgbImage& image) {
  static const bool started = VIPS_INIT("image_edge_test") == 0;
  EXPECT_TRUE(started);
  return VImage::new_from_memory(const_cast<uint8_t*>(image.pixels.data()), image.pixels.size(), static_cast<int>(image.width),
                                 static_cast<int>(image.height), 3, VIPS_FORMAT_UCHAR)
      .copy(VImage::option()->set("interpretation", VIPS_INTERPRETATION_sRGB))
      .copy_memory();
}

std::vector<uint8_t> encode(const VImage& image, const char* suffix, vips::VOption* options = nullptr) {
  void* data = nullptr;
  size_t size = 0;
  image.write_to_buffer(suffix, &data, &size, options);
  const auto* bytes = static_cast<const uint8_t*>(data);
  std::vector<uint8_t> result(bytes, bytes + size);
  g_free(data);
  return result;
}

RgbImage blank(int64_t width, int64_t height) {
  return {width, height, std::vector<uint8_t>(static_cast<size_t>(width * height * 3), 90)};
}

// What a viewer must do to show a stored picture of this orientation upright, in terms of libvips' elementary turns.
VImage stored_as(const VImage& upright, int orientation) {
  switch (orientation) {
    case 2:
      return upright.flip(VIPS_DIRECTION_HORIZONTAL);
    case 3:
      return upright.rot(VIPS_ANGLE_D180);
    case 4:
      return upright.flip(VIPS_DIRECTION_VERTICAL);
    case 5:
      return upright.rot(VIPS_ANGLE_D90).flip(VIPS_DIRECTION_HORIZONTAL);
    case 6:
      return upright.rot(VIPS_ANGLE_D270);
    case 7:
      return upright.rot(VIPS_ANGLE_D270).flip(VIPS_DIRECTION_HORIZONTAL);
    case 8:
      return upright.rot(VIPS_ANGLE_D90);
    default:
      return upright;
  }
}

void append_big_endian(std::vector<uint8_t>& bytes, uint32_t value) {
  for (int shift = 24; shift >= 0; shift -= 8) bytes.push_back(static_cast<uint8_t>(value >> shift));
}

// `png` with an eXIf chunk that holds the orientation; libvips reads such chunks but does not write them.
std::vector<uint8_t> with_png_exif(const std::vector<uint8_t>& png, int orientation) {
  const std::vector<uint8_t> exif = {
      'M', 'M', 0, 42, 0, 0, 0, 8, 0, 1, 1, 0x12, 0, 3, 0, 0, 0, 1, 0, static_cast<uint8_t>(orientation), 0, 0, 0, 0, 0, 0};
  std::vector<uint8_t> body = {'e', 'X', 'I', 'f'};
  body.insert(body.end(), exif.begin(), exif.end());
  uint32_t crc = ~0U;
  for (const uint8_t byte : body) {
    crc ^= byte;
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320U : 0U);
  }
  std::vector<uint8_t> chunk;
  append_big_endian(chunk, static_cast<uint32_t>(exif.size()));
  chunk.insert(chunk.end(), body.begin(), body.end());
  append_big_endian(chunk, ~crc);
  std::vector<uint8_t> result = png;
  result.insert(result.begin() + 33, chunk.begin(), chunk.end());  // after the signature and the header chunk
  return result;
}

std::vector<uint8_t> encode_oriented(const RgbImage& upright, int orientation, const char* suffix, vips::VOption* options) {
  VImage image = stored_as(to_vips(upright), orientation).copy();
  image.set(VIPS_META_ORIENTATION, orientation);
  return encode(image, suffix, options);
}

TEST(ImageShapes, ExtremeShapesAtTheLowestBudgetKeepOnePatchASide) {
  for (const auto& [width, height] : {std::pair<int64_t, int64_t>{1, 1}, {31, 639}, {20, 200}, {200, 20}}) {
    SCOPED_TRACE(fmt::format("{} x {}", width, height));
    const ImagePlan plan = plan_image(width, height, kLowestBudget);
    EXPECT_EQ(plan.llm_rows, 1);
    EXPECT_EQ(plan.llm_columns, 1);
    EXPECT_GE(plan.patch_rows, 1);
    EXPECT_GE(plan.patch_columns, 1);
    const RgbImage canvas = fit_image(blank(width, height), plan);
    EXPECT_EQ(canvas.pixels.size(), static_cast<size_t>(plan.width * plan.height * 3));
    EXPECT_EQ(canvas.pixels[static_cast<size_t>((plan.fit_top * plan.width + plan.fit_left) * 3)], 90);
  }
}

TEST(ImageShapes, TooThinPicturesAreRefusedWithSizeAndLimit) {
  for (const auto& [width, height] : {std::pair<int64_t, int64_t>{1, 4000}, {4000, 1}, {20000, 20}}) {
    try {
      plan_image(width, height, kLowestBudget);
      FAIL() << width << " x " << height << " was accepted";
    } catch (const DataError& error) {
      EXPECT_THAT(error.what(), HasSubstr(fmt::format("{} x {}", width, height)));
      EXPECT_THAT(error.what(), HasSubstr("at most 4 image tokens"));
    }
  }
}

TEST(ImageShapes, ThinPicturesFitTheReleasedLimits) {
  for (const auto& [width, height] : {std::pair<int64_t, int64_t>{1, 4000}, {4000, 1}, {31, 639}, {20000, 20}, {1, 42000}}) {
    SCOPED_TRACE(fmt::format("{} x {}", width, height));
    const ImagePlan plan = plan_image(width, height, {});
    EXPECT_LE(plan.tokens, 1024);
    EXPECT_EQ(span_types(plan).size(), static_cast<size_t>(plan.tokens));
    const RgbImage canvas = fit_image(blank(width, height), plan);
    EXPECT_EQ(canvas.pixels[static_cast<size_t>((plan.fit_top * plan.width + plan.fit_left) * 3)], 90);
  }
}

TEST(ImageShapes, EverySmallSizeKeepsWithinEveryBudget) {
  for (const int64_t tokens : {4, 5, 7, 16, 64}) {
    for (int64_t width = 5; width < 200; width += 7) {
      for (int64_t height = 5; height < 200; height += 11) {
        const ImagePlan plan = plan_image(width, height, {.min_pixels = 784, .max_image_tokens = tokens});
        ASSERT_LE(plan.tokens, tokens) << width << " x " << height;
        ASSERT_GE(std::min(plan.fit_width, plan.fit_height), 1) << width << " x " << height;
        ASSERT_LE(plan.fit_left + plan.fit_width, plan.width) << width << " x " << height;
        ASSERT_LE(plan.fit_top + plan.fit_height, plan.height) << width << " x " << height;
      }
    }
  }
}

TEST(ImageShapes, ImpossibleLimitsAreNamed) {
  EXPECT_THROW(plan_image(0, 5, {}), DataError);
  EXPECT_THROW(plan_image(5, 5, {.patch_size = 0}), ConfigError);
  EXPECT_THROW(plan_image(5, 5, {.downsample = 0}), ConfigError);
  EXPECT_THROW(plan_image(5, 5, {.min_pixels = -1}), ConfigError);
  EXPECT_THROW(plan_image(5, 5, {.max_image_tokens = 3}), ConfigError);
  EXPECT_THROW(plan_image(5, 5, {.max_wh_ratio = 0.0}), ConfigError);
}

TEST(ImageOrientation, AllEightShowTheSamePicture) {
  const RgbImage upright = asymmetric_picture();
  for (int orientation = 1; orientation <= 8; ++orientation) {
    SCOPED_TRACE(orientation);
    const auto png = with_png_exif(encode(stored_as(to_vips(upright), orientation), ".png"), orientation);
    EXPECT_EQ(decode_image(png, ExifOrientation::kApply, "png"), upright);
    const RgbImage stored = decode_image(png, ExifOrientation::kIgnore, "png");
    EXPECT_EQ(stored == upright, orientation == 1);
    EXPECT_EQ(stored.width, orientation < 5 ? 24 : 16);

    // WebP holds EXIF as well; JPEG is lossy, so a few levels.
    const auto webp = encode_oriented(upright, orientation, ".webp", VImage::option()->set("lossless", true));
    EXPECT_EQ(decode_image(webp, ExifOrientation::kApply, "webp"), upright);
    const auto jpeg = encode_oriented(upright, orientation, ".jpg",
                                      VImage::option()->set("Q", 100)->set("subsample_mode", VIPS_FOREIGN_SUBSAMPLE_OFF));
    const RgbImage decoded = decode_image(jpeg, ExifOrientation::kApply, "jpeg");
    ASSERT_EQ(decoded.width, 24);
    for (size_t i = 0; i < decoded.pixels.size(); ++i) ASSERT_NEAR(decoded.pixels[i], upright.pixels[i], 6) << i;
  }
}

TEST(ImageOrientation, HeaderTellsTheSizeThatDecodingGives) {
  for (int orientation = 1; orientation <= 8; ++orientation) {
    const auto png = with_png_exif(encode(stored_as(to_vips(asymmetric_picture()), orientation), ".png"), orientation);
    for (const ExifOrientation rule : {ExifOrientation::kApply, ExifOrientation::kIgnore}) {
      const ImageInfo info = read_image_info(png, rule, "png");
      const RgbImage image = decode_image(png, rule, "png");
      EXPECT_EQ(std::pair(info.width, info.height), std::pair(image.width, image.height)) << orientation;
      EXPECT_EQ(info.exif_orientation, orientation);
      EXPECT_EQ(info.format, "png");
      EXPECT_EQ(info.bands, 3);
      EXPECT_EQ(info.bits, 8);
    }
  }
}

TEST(ImageCodec, PngKeepsEveryPixel) {
  const RgbImage image = asymmetric_picture();
  EXPECT_EQ(decode_image(encode_png(image), ExifOrientation::kApply, "png"), image);
}

TEST(ImageColours, CmykAndYcckJpegsOfARedSquareAreRedOnWhite) {
  for (const char* name : {"red-square-cmyk.jpg", "red-square-ycck.jpg"}) {
    SCOPED_TRACE(name);
    const RgbImage image = decode_image(read_bytes(kTestImages / name), ExifOrientation::kApply, name);
    ASSERT_EQ(image.width, 32);
    const auto channel = [&](int64_t x, int64_t y, int64_t c) {
      return static_cast<int>(image.pixels[static_cast<size_t>((y * 32 + x) * 3 + c)]);
    };
    EXPECT_GE(channel(16, 16, 0), 250);
    EXPECT_LE(channel(16, 16, 1), 5);
    EXPECT_LE(channel(16, 16, 2), 5);
    for (int64_t c = 0; c < 3; ++c) EXPECT_GE(channel(2, 2, c), 250);
  }
}

TEST(ImageColours, SixteenBitSamplesGiveTheirHighByte) {
  const VImage deep = (to_vips(asymmetric_picture()) * 256 + 77).cast(VIPS_FORMAT_USHORT);
  const auto rgb = encode(deep.copy(VImage::option()->set("interpretation", VIPS_INTERPRETATION_RGB16)), ".png");
  EXPECT_EQ(decode_image(rgb, ExifOrientation::kApply, "rgb16"), asymmetric_picture());
}

TEST(ImageColours, AlphaIsDroppedAndNotBlended) {
  const RgbImage image = asymmetric_picture();
  EXPECT_EQ(decode_image(encode(to_vips(image).bandjoin(0), ".png"), ExifOrientation::kApply, "rgba"), image);
  const auto grey = encode(
      to_vips(image).extract_band(1).copy(VImage::option()->set("interpretation", VIPS_INTERPRETATION_B_W)).bandjoin(0), ".png");
  const RgbImage decoded = decode_image(grey, ExifOrientation::kApply, "grey-alpha");
  for (size_t i = 0; i < decoded.pixels.size(); ++i) ASSERT_EQ(decoded.pixels[i], image.pixels[i / 3 * 3 + 1]);
}

TEST(ImageErrors, PicturesAboveThePixelLimitAreRefusedBeforeDecoding) {
  const auto png = encode(VImage::black(20000, 10000), ".png");  // 200 million pixels in a few hundred kilobytes
  try {
    decode_image(png, ExifOrientation::kApply, "bomb.png");
    FAIL() << "accepted";
  } catch (const DataError& error) {
    EXPECT_THAT(error.what(), testing::StartsWith("bomb.png: 20000 x 10000 pixels"));
    EXPECT_THAT(error.what(), HasSubstr("178956970"));
  }
  EXPECT_THROW(decode_image(encode(to_vips(blank(11, 10)), ".png"), ExifOrientation::kApply, "eleven", 100), DataError);
  EXPECT_EQ(decode_image(encode(to_vips(blank(10, 10)), ".png"), ExifOrientation::kApply, "ten", 100).width, 10);
}

TEST(ImageErrors, FilesCutAnywhereInTheirPixelsAreRefused) {
  for (const char* suffix : {".png", ".jpg", ".webp", ".gif"}) {
    RgbImage noise = blank(64, 48);
    uint32_t state = 1;
    for (uint8_t& byte : noise.pixels) byte = static_cast<uint8_t>((state = state * 1664525 + 1013904223) >> 24);
    const std::vector<uint8_t> whole = encode(to_vips(noise), suffix);
    for (size_t size = 0; size + 64 < whole.size(); size += whole.size() / 23) {
      EXPECT_THROW(decode_image(std::span(whole).first(size), ExifOrientation::kApply, suffix), DataError)
          << suffix << ": the first " << size << " of " << whole.size() << " bytes";
    }
  }
}

TEST(ImageErrors, DocumentFormatsAreNotPictures) {
  const std::string svg =
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"8\" height=\"8\"><rect width=\"8\" height=\"8\"/></svg>";
  const std::vector<uint8_t> bytes(svg.begin(), svg.end());
  EXPECT_THROW(decode_image(bytes, ExifOrientation::kApply, "drawing.svg"), DataError);
}

TEST(ImageThreads, DecodeTheSamePixelsSideBySide) {
  const std::vector<uint8_t> bytes = read_bytes(kGoldenData / "images/photo-640x480.jpg");
  const RgbImage expected = decode_image(bytes, ExifOrientation::kApply, "photo");
  std::array<bool, 4> equal{};
  std::vector<std::thread> threads;
  for (bool& result : equal) {
    threads.emplace_back([&] {
      result = true;
      for (int i = 0; i < 4; ++i) {
        result = result && decode_image(bytes, ExifOrientation::kApply, "photo") == expected;
        EXPECT_THROW(decode_image(std::span(bytes).first(1000), ExifOrientation::kApply, "cut"), DataError);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const bool result : equal) EXPECT_TRUE(result);
}

}  // namespace
}  // namespace hyperparallel::data
