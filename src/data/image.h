// Pictures for the vision encoder: decoding, the plan that a size leads to, the exact resize, patches and token roles.
// All functions are pure and may be called from any number of threads. Nothing here knows libtorch.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hyperparallel::data {

// How many pixels and tokens a picture may become: the keys of `vision_config` that preprocessing reads.
struct ImageLimits {
  int64_t patch_size = 14;                  // pixels a side of one ViT patch
  int64_t downsample = 3;                   // patches a side that become one image token
  int64_t min_pixels = 295936;              // smaller pictures are enlarged to about this area
  int64_t max_image_tokens = 1024;          // of one picture's span, delimiters included
  std::optional<double> max_wh_ratio = {};  // wider pictures are squeezed to this width / height
};

// What becomes of a picture of one size.
struct ImagePlan {
  int64_t llm_rows = 0, llm_columns = 0;      // image tokens: grid after the downsampling, row by row
  int64_t height = 0, width = 0;              // pixels of the canvas, multiples of patch_size
  int64_t tokens = 0;                         // of the whole span: llm_rows * (llm_columns + 1) + 2
  int64_t patch_rows = 0, patch_columns = 0;  // ViT grid: height / patch_size, width / patch_size
  int64_t fit_width = 0, fit_height = 0;      // pixels of the resized picture inside the canvas ...
  int64_t fit_left = 0, fit_top = 0;          // ... and where it lies; the rest is grey 127

  bool operator==(const ImagePlan&) const = default;
};

struct RgbImage {
  int64_t width = 0, height = 0;
  std::vector<uint8_t> pixels;  // [height, width, 3], row by row

  bool operator==(const RgbImage&) const = default;
};

enum class ExifOrientation { kApply, kIgnore };

// Roles of the positions of a picture's span; text positions are -1.
enum SpanType : int32_t { kSpanText = -1, kSpanStart = 0, kSpanImage = 1, kSpanNewLine = 2, kSpanEnd = 3 };

// The same number of pixels that Pillow refuses as a decompression bomb.
inline constexpr int64_t kDefaultMaxDecodedPixels = 2 * 89478485;

// The plan for a picture of `width` x `height` pixels. Throws DataError where the picture is so thin that a fitted side would be
// 0 (beyond about 42,900 : 1 with the released limits), or where width or height is not positive.
ImagePlan plan_image(int64_t width, int64_t height, const ImageLimits& limits);

// Decodes PNG, JPEG, GIF, WebP (and what else the installed libvips reads) to 8-bit RGB: first frame, alpha and palette
// transparency dropped, 16-bit samples by their high byte, CMYK without a profile. Throws DataError, which begins with `name`,
// for data that is empty, truncated or no picture, and for pictures of more than `max_pixels` pixels (refused before they are
// decoded).
RgbImage decode_image(std::span<const uint8_t> bytes, ExifOrientation orientation, std::string_view name,
                      int64_t max_pixels = kDefaultMaxDecodedPixels);

// What a picture's header tells, without decoding its pixels: so much cheaper, but damage further in goes unseen.
struct ImageInfo {
  int64_t width = 0, height = 0;  // as decode_image would return them
  int exif_orientation = 1;       // 1 to 8, as stored; 5 to 8 exchange the sides when applied
  std::string format;             // "png", "jpeg", "gif", "webp", ...
  int bands = 0, bits = 0;        // samples a pixel and bits a sample in the file, palettes expanded
};

// Throws as decode_image does.
ImageInfo read_image_info(std::span<const uint8_t> bytes, ExifOrientation orientation, std::string_view name,
                          int64_t max_pixels = kDefaultMaxDecodedPixels);

// The bytes of a PNG file.
std::vector<uint8_t> encode_png(const RgbImage& image);

// Resizes with a bicubic filter, bit-exactly as the released preprocessing does, and pads with grey 127. Returns the canvas,
// plan.width x plan.height. `plan` must come from plan_image of this picture's size.
RgbImage fit_image(const RgbImage& image, const ImagePlan& plan);

// Normalised patches of a canvas, [patch_rows * patch_columns, 3 * patch_size * patch_size]: patches row by row, each flattened
// channel, row, column. A value is (v / 255 - 0.5) / 0.5 rounded to bfloat16, kept as float (bfloat16_bits gives it back).
std::vector<float> image_patches(const RgbImage& canvas, int64_t patch_size);

// The bits of a float that is exactly a bfloat16 number.
uint16_t bfloat16_bits(float value);

// SpanType of each of plan.tokens positions: start, then for each row its image tokens and a new line, then end.
std::vector<int32_t> span_types(const ImagePlan& plan);

}  // namespace hyperparallel::data
