#include "data/jsonl.h"

#include <fcntl.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <string_view>
#include <utility>

#include "base/error.h"

namespace hyperparallel::data {
namespace {

constexpr size_t kChunk = size_t{1} << 20;

// Reads up to `size` bytes; less only at the end of the file.
size_t read_at(int descriptor, char* bytes, size_t size, uint64_t offset, const std::string& path) {
  size_t done = 0;
  while (done < size) {
    const ssize_t count = pread(descriptor, bytes + done, size - done, static_cast<off_t>(offset + done));
    if (count == 0) break;
    if (count < 0) {
      if (errno == EINTR) continue;
      throw DataError("{}: cannot be read: {}", path, std::strerror(errno));
    }
    done += static_cast<size_t>(count);
  }
  return done;
}

}  // namespace

JsonlFile::JsonlFile(std::string path) : path_(std::move(path)) {
  descriptor_ = open(path_.c_str(), O_RDONLY | O_CLOEXEC);
  if (descriptor_ < 0) throw DataError("{}: cannot be opened: {}", path_, std::strerror(errno));
  try {
    index();
    if (lines_.empty()) throw DataError("{}: the file has no samples (one JSON object a line is needed)", path_);
  } catch (...) {
    close(descriptor_);
    throw;
  }
}

JsonlFile::JsonlFile(JsonlFile&& other) noexcept
    : path_(std::move(other.path_)),
      descriptor_(std::exchange(other.descriptor_, -1)),
      bytes_(other.bytes_),
      hash_(other.hash_),
      lines_(std::move(other.lines_)) {}

JsonlFile::~JsonlFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

void JsonlFile::index() {
  const std::unique_ptr<XXH3_state_t, decltype(&XXH3_freeState)> hasher(XXH3_createState(), XXH3_freeState);
  XXH3_64bits_reset(hasher.get());
  std::string chunk(kChunk, '\0');
  uint64_t begin = 0;  // of the present line
  uint32_t number = 1;
  bool blank = true;
  const auto end_line = [&](uint64_t end) {
    if (!blank) lines_.push_back({begin, static_cast<uint32_t>(std::min<uint64_t>(end - begin, kMaxLineBytes + 1)), number});
    ++number;
    blank = true;
  };
  for (uint64_t at = 0;;) {
    const size_t size = read_at(descriptor_, chunk.data(), kChunk, at, path_);
    if (size == 0) break;
    XXH3_64bits_update(hasher.get(), chunk.data(), size);
    std::string_view rest(chunk.data(), size);
    if (at == 0 && rest.starts_with("\xEF\xBB\xBF")) {
      begin = 3;
      rest.remove_prefix(3);
    }
    while (!rest.empty()) {
      const size_t stop = std::min(rest.find('\n'), rest.size());
      blank = blank && rest.substr(0, stop).find_first_not_of(" \t\r") == std::string_view::npos;
      if (stop == rest.size()) break;
      const uint64_t end = at + static_cast<uint64_t>(rest.data() - chunk.data()) + stop;
      end_line(end);
      begin = end + 1;
      rest.remove_prefix(stop + 1);
    }
    at += size;
    bytes_ = static_cast<int64_t>(at);
  }
  end_line(static_cast<uint64_t>(bytes_));
  hash_ = XXH3_64bits_digest(hasher.get());
}

std::string JsonlFile::read(int64_t sample) const {
  const Line& line = lines_.at(sample);
  if (line.bytes > kMaxLineBytes) throw DataError("{}:{}: the line has more than {} bytes", path_, line.number, kMaxLineBytes);
  std::string text(line.bytes, '\0');
  if (read_at(descriptor_, text.data(), text.size(), line.offset, path_) != text.size()) {
    throw DataError("{}:{}: the file has become shorter since it was opened", path_, line.number);
  }
  return text;
}

}  // namespace hyperparallel::data
