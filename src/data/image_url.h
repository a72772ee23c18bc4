// Where a picture comes from: the url of an image block, turned into the bytes of an image file.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hyperparallel::data {

inline constexpr int64_t kMaxImageFileBytes = int64_t{256} << 20;

// A short name of a url for messages: the url itself, a data: URI without its payload.
std::string image_name(std::string_view url);

// Reads the picture. `url` is a path (a relative one counts from `folder`), a file:// url, or a data: URI in base64 (parameters,
// upper case, the url-safe alphabet and missing padding are tolerated). Nothing is ever downloaded.
// Throws DataError for http(s) and other schemes, for what cannot be read, and for files beyond kMaxImageFileBytes.
std::vector<uint8_t> read_image_url(std::string_view url, const std::string& folder);

}  // namespace hyperparallel::data
