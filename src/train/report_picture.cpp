#include "train/report_picture.h"

#include <openssl/evp.h>

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "data/image.h"

namespace hyperparallel::train {
namespace {

constexpr size_t kKeptBytes = 64 << 10;
constexpr int64_t kLongestSide = 384;

// What a browser shows, by the first bytes of the file; empty for anything else.
std::string_view web_type(std::string_view bytes) {
  if (bytes.starts_with("\x89PNG")) return "image/png";
  if (bytes.starts_with("\xff\xd8\xff")) return "image/jpeg";
  if (bytes.starts_with("GIF8")) return "image/gif";
  if (bytes.starts_with("RIFF") && bytes.substr(0, 12).ends_with("WEBP")) return "image/webp";
  return {};
}

std::string data_uri(std::string_view type, std::string_view bytes) {
  std::string encoded((bytes.size() + 2) / 3 * 4 + 1, '\0');
  const int size = EVP_EncodeBlock(reinterpret_cast<unsigned char*>(encoded.data()),
                                   reinterpret_cast<const unsigned char*>(bytes.data()), static_cast<int>(bytes.size()));
  encoded.resize(static_cast<size_t>(size));
  return fmt::format("data:{};base64,{}", type, encoded);
}

// Means of squares of `factor` x `factor` pixels; what is left at the right and lower edge is dropped.
data::RgbImage shrunk(const data::RgbImage& image, int64_t factor) {
  data::RgbImage small{std::max<int64_t>(1, image.width / factor), std::max<int64_t>(1, image.height / factor), {}};
  const int64_t across = std::min(factor, image.width), down = std::min(factor, image.height);
  for (int64_t y = 0; y < small.height; ++y) {
    for (int64_t x = 0; x < small.width; ++x) {
      for (int64_t channel = 0; channel < 3; ++channel) {
        int64_t sum = 0;
        for (int64_t dy = 0; dy < down; ++dy) {
          for (int64_t dx = 0; dx < across; ++dx)
            sum += image.pixels[((y * factor + dy) * image.width + x * factor + dx) * 3 + channel];
        }
        small.pixels.push_back(static_cast<uint8_t>(sum / (across * down)));
      }
    }
  }
  return small;
}

std::string file_data_uri(const std::filesystem::path& path) {
  const std::string bytes = file::read(path);
  const std::string_view type = web_type(bytes);
  if (!type.empty() && bytes.size() <= kKeptBytes) return data_uri(type, bytes);
  const std::span<const uint8_t> encoded(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
  data::RgbImage image = data::decode_image(encoded, data::ExifOrientation::kApply, path.string());
  const int64_t factor = (std::max(image.width, image.height) + kLongestSide - 1) / kLongestSide;
  if (factor > 1) image = shrunk(image, factor);
  const std::vector<uint8_t> png = data::encode_png(image);
  return data_uri("image/png", {reinterpret_cast<const char*>(png.data()), png.size()});
}

}  // namespace

std::string picture_data_uri(const std::string& reference, const std::filesystem::path& folder) {
  if (reference.starts_with("data:")) return reference;
  constexpr std::string_view kFileUrl = "file://";
  const std::filesystem::path path = reference.starts_with(kFileUrl) ? reference.substr(kFileUrl.size()) : reference;
  try {
    return file_data_uri(path.is_absolute() ? path : folder / path);
  } catch (const Error& error) {
    log::warn("the report leaves out a picture: {}", error.what());
    return {};
  }
}

}  // namespace hyperparallel::train
