#include "data/image_url.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/error.h"

namespace hyperparallel::data {
namespace {

std::string lower(std::string_view text) {
  std::string out(text);
  std::ranges::transform(out, out.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  const int letter = std::tolower(static_cast<unsigned char>(c));
  return letter >= 'a' && letter <= 'f' ? letter - 'a' + 10 : -1;
}

// %41 -> A.
std::string percent_decode(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '%' && i + 2 < text.size() && hex_digit(text[i + 1]) >= 0 && hex_digit(text[i + 2]) >= 0) {
      out += static_cast<char>(hex_digit(text[i + 1]) * 16 + hex_digit(text[i + 2]));
      i += 2;
    } else {
      out += text[i];
    }
  }
  return out;
}

int base64_digit(char c) {
  if (c >= 'A' && c <= 'Z') return c - 'A';
  if (c >= 'a' && c <= 'z') return c - 'a' + 26;
  if (c >= '0' && c <= '9') return c - '0' + 52;
  if (c == '+' || c == '-') return 62;
  if (c == '/' || c == '_') return 63;
  return -1;
}

std::vector<uint8_t> base64_decode(std::string_view text) {
  std::vector<uint8_t> out;
  out.reserve(text.size() / 4 * 3 + 3);
  uint32_t bits = 0;
  int count = 0;  // digits read since the last whole group
  size_t end = text.size();
  while (end > 0 && (text[end - 1] == '=' || std::isspace(static_cast<unsigned char>(text[end - 1])))) --end;
  for (size_t i = 0; i < end; ++i) {
    if (std::isspace(static_cast<unsigned char>(text[i]))) continue;
    const int digit = base64_digit(text[i]);
    if (digit < 0) throw DataError("the data: URI is not base64 (character {} of its payload)", i + 1);
    bits = bits << 6 | static_cast<uint32_t>(digit);
    if (++count == 4) {
      out.insert(out.end(), {static_cast<uint8_t>(bits >> 16), static_cast<uint8_t>(bits >> 8), static_cast<uint8_t>(bits)});
      bits = 0;
      count = 0;
    }
  }
  if (count == 1) throw DataError("the data: URI is cut: one base64 digit is left over");
  if (count >= 2) out.push_back(static_cast<uint8_t>(bits >> (count == 2 ? 4 : 10)));
  if (count == 3) out.push_back(static_cast<uint8_t>(bits >> 2));
  return out;
}

// `rest` is what follows "data:": [media type][;parameters];base64,payload.
std::vector<uint8_t> read_data_uri(std::string_view rest) {
  const size_t comma = rest.find(',');
  if (comma == std::string_view::npos) throw DataError("the data: URI has no comma before its payload");
  const std::string head = lower(rest.substr(0, comma));
  const std::string type = head.substr(0, head.find(';'));
  if (!type.empty() && !type.starts_with("image/")) throw DataError("the data: URI holds `{}`, not an image", type);
  if (!head.ends_with(";base64")) throw DataError("the data: URI is not in base64");
  return base64_decode(rest.substr(comma + 1));
}

std::vector<uint8_t> read_file(const std::filesystem::path& path) {
  std::error_code failure;
  if (std::filesystem::is_directory(path, failure)) throw DataError("{} is a folder", path.string());
  const auto size = std::filesystem::file_size(path, failure);
  if (failure) throw DataError("{} cannot be read: {}", path.string(), failure.message());
  if (size > static_cast<uintmax_t>(kMaxImageFileBytes)) {
    throw DataError("{} has {} bytes; at most {} are accepted", path.string(), size, kMaxImageFileBytes);
  }
  std::ifstream file(path, std::ios::binary);
  std::vector<uint8_t> bytes(size);
  if (!file || !file.read(reinterpret_cast<char*>(bytes.data()), static_cast<std::streamsize>(size))) {
    throw DataError("{} cannot be read: {}", path.string(), std::strerror(errno));
  }
  return bytes;
}

}  // namespace

std::string image_name(std::string_view url) {
  if (lower(url.substr(0, 5)) != "data:") return std::string(url);
  return std::string(url.substr(0, std::min<size_t>(url.find(','), 60)));
}

std::vector<uint8_t> read_image_url(std::string_view url, const std::string& folder) {
  if (lower(url.substr(0, 5)) == "data:") return read_data_uri(url.substr(5));
  const size_t scheme = url.find("://");
  if (scheme == std::string_view::npos) return read_file(std::filesystem::path(folder) / url);
  if (lower(url.substr(0, scheme)) != "file") {
    throw DataError("pictures are not downloaded (`{}`); give a path, a file:// url or a data: URI", url.substr(0, scheme + 3));
  }
  std::string_view path = url.substr(scheme + 3);
  if (lower(path.substr(0, 10)) == "localhost/") path.remove_prefix(9);
  if (!path.starts_with('/')) throw DataError("`{}` names no absolute path of this machine; write file:///path", url);
  return read_file(percent_decode(path));
}

}  // namespace hyperparallel::data
