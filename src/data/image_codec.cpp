// Decoding and encoding by libvips.
#include <vips/vips8>

#include <algorithm>
#include <memory>
#include <mutex>

#include "base/error.h"
#include "base/log.h"
#include "data/image.h"

namespace hyperparallel::data {
namespace {

using vips::VImage;

void log_vips_warning(const gchar*, GLogLevelFlags, const gchar* message, gpointer) {
  log::debug("libvips: {}", message);
}

void init_vips() {
  static std::once_flag once;
  std::call_once(once, [] {
    HP_CHECK(VIPS_INIT("hyperparallel") == 0, "libvips does not start: {}", vips_error_buffer());
    vips_block_untrusted_set(TRUE);  // no loaders that were never hardened against hostile files (PDF, SVG, ImageMagick)
    vips_concurrency_set(1);         // the callers' threads are the parallelism
    vips_cache_set_max(0);           // every picture is read once
    g_log_set_handler("VIPS", G_LOG_LEVEL_WARNING, log_vips_warning, nullptr);
  });
}

// The message of the last failure, on one line.
std::string reason(const vips::VError& error) {
  std::string text = error.what();
  vips_error_clear();
  while (!text.empty() && text.back() == '\n') text.pop_back();
  std::replace(text.begin(), text.end(), '\n', ';');
  return text;
}

// 8-bit samples with one (grey), three (RGB) or four (CMYK) bands, not yet computed.
VImage normalise(VImage image, std::string_view name) {
  const VipsInterpretation space = image.interpretation();
  if (image.format() == VIPS_FORMAT_USHORT) image = image.msb();
  const bool cmyk = space == VIPS_INTERPRETATION_CMYK;
  const bool grey = space == VIPS_INTERPRETATION_B_W || space == VIPS_INTERPRETATION_GREY16;
  const bool rgb = space == VIPS_INTERPRETATION_sRGB || space == VIPS_INTERPRETATION_RGB || space == VIPS_INTERPRETATION_RGB16;
  const int bands = cmyk ? 4 : grey ? 1 : 3;
  if (image.format() != VIPS_FORMAT_UCHAR || !(cmyk || grey || rgb) || image.bands() < bands) {
    throw DataError("{}: its pixels ({} bands of {}, colour space {}) are not supported; 8- or 16-bit grey, RGB or CMYK is", name,
                    image.bands(), vips_enum_nick(VIPS_TYPE_BAND_FORMAT, image.format()),
                    vips_enum_nick(VIPS_TYPE_INTERPRETATION, space));
  }
  return image.bands() > bands ? image.extract_band(0, VImage::option()->set("n", bands)) : image;  // drops transparency
}

// Computes the 8-bit samples, [height, width, bands], in this thread: libvips' own way to memory hands every strip to a pool of
// threads, which takes many times as long for small pictures.
std::vector<uint8_t> read_samples(const VImage& image) {
  constexpr int kStrip = 64;  // rows
  const size_t row = static_cast<size_t>(image.width()) * static_cast<size_t>(image.bands());
  std::vector<uint8_t> samples(row * static_cast<size_t>(image.height()));
  const vips::VRegion region = image.region();
  uint8_t* target = samples.data();
  for (int top = 0; top < image.height(); top += kStrip) {
    const int rows = std::min(kStrip, image.height() - top);
    region.prepare(0, top, image.width(), rows);
    for (int y = top; y < top + rows; ++y, target += row) {
      std::copy_n(VIPS_REGION_ADDR(region.get_region(), 0, y), row, target);
    }
  }
  return samples;
}

// `samples` are [pixels, bands] as normalise() describes them.
std::vector<uint8_t> to_rgb(std::vector<uint8_t> samples, int bands) {
  if (bands == 3) return samples;
  std::vector<uint8_t> rgb;
  rgb.reserve(samples.size() / static_cast<size_t>(bands) * 3);
  for (size_t i = 0; i < samples.size(); i += static_cast<size_t>(bands)) {
    if (bands == 1) {
      rgb.insert(rgb.end(), 3, samples[i]);
      continue;
    }
    const int white = 255 - samples[i + 3];
    for (size_t ink = 0; ink < 3; ++ink) rgb.push_back(static_cast<uint8_t>(((255 - samples[i + ink]) * white + 127) / 255));
  }
  return rgb;
}

// A view of `image`, which must outlive it.
VImage view(const RgbImage& image) {
  return VImage::new_from_memory(const_cast<uint8_t*>(image.pixels.data()), image.pixels.size(), static_cast<int>(image.width),
                                 static_cast<int>(image.height), 3, VIPS_FORMAT_UCHAR)
      .copy(VImage::option()->set("interpretation", VIPS_INTERPRETATION_sRGB));
}

RgbImage turn_upright(const RgbImage& image, int orientation) {
  VImage stored = view(image);
  stored.set(VIPS_META_ORIENTATION, orientation);
  const VImage upright = stored.autorot();
  return {upright.width(), upright.height(), read_samples(upright)};
}

// The picture with its header read and its size checked; pixels come from `bytes` when they are asked for.
VImage open_image(std::span<const uint8_t> bytes, std::string_view name, int64_t max_pixels) {
  if (bytes.empty()) throw DataError("{}: the picture is empty (0 bytes)", name);
  init_vips();
  VImage image =
      VImage::new_from_buffer(bytes.data(), bytes.size(), "",
                              VImage::option()->set("access", VIPS_ACCESS_SEQUENTIAL)->set("fail_on", VIPS_FAIL_ON_ERROR));
  if (int64_t{image.width()} * image.height() > max_pixels) {
    throw DataError("{}: {} x {} pixels are more than the {} allowed", name, image.width(), image.height(), max_pixels);
  }
  return image;
}

DataError undecodable(std::string_view name, const vips::VError& error) {
  return DataError("{}: no picture that can be decoded ({}); PNG, JPEG, GIF and WebP are", name, reason(error));
}

}  // namespace

ImageInfo read_image_info(std::span<const uint8_t> bytes, ExifOrientation orientation, std::string_view name,
                          int64_t max_pixels) {
  try {
    const VImage image = open_image(bytes, name, max_pixels);
    ImageInfo info;
    info.width = image.width();
    info.height = image.height();
    info.exif_orientation = vips_image_get_orientation(image.get_image());
    if (orientation == ExifOrientation::kApply && info.exif_orientation >= 5) std::swap(info.width, info.height);
    const std::string loader = image.get_string(VIPS_META_LOADER);  // "pngload_buffer"
    info.format = loader.substr(0, loader.find("load"));
    info.bands = image.bands();
    info.bits = static_cast<int>(vips_format_sizeof(image.format())) * 8;
    return info;
  } catch (const vips::VError& error) {
    throw undecodable(name, error);
  }
}

RgbImage decode_image(std::span<const uint8_t> bytes, ExifOrientation orientation, std::string_view name, int64_t max_pixels) {
  try {
    const VImage file = open_image(bytes, name, max_pixels);
    const VImage image = normalise(file, name);
    RgbImage result{image.width(), image.height(), to_rgb(read_samples(image), image.bands())};
    const int stored = vips_image_get_orientation(file.get_image());
    return orientation == ExifOrientation::kApply && stored > 1 ? turn_upright(result, stored) : result;
  } catch (const vips::VError& error) {
    throw undecodable(name, error);
  }
}

std::vector<uint8_t> encode_png(const RgbImage& image) {
  HP_CHECK(static_cast<int64_t>(image.pixels.size()) == image.width * image.height * 3, "{} bytes for {} x {} pixels",
           image.pixels.size(), image.width, image.height);
  init_vips();
  void* data = nullptr;
  size_t size = 0;
  view(image).write_to_buffer(".png", &data, &size);
  const std::unique_ptr<void, decltype(&g_free)> file(data, g_free);
  return {static_cast<uint8_t*>(data), static_cast<uint8_t*>(data) + size};
}

}  // namespace hyperparallel::data
