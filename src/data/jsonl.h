// A JSONL file read by line number without being loaded: an index of line starts, built in one pass at the start.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace hyperparallel::data {

inline constexpr uint32_t kMaxLineBytes = uint32_t{256} << 20;

// A line ends with LF or CRLF or the end of the file. Blank lines are no samples but count as lines; a byte order mark at the
// start of the file is skipped. Const calls may come from several threads at once.
class JsonlFile {
 public:
  // Opens and indexes the file. Throws DataError where it cannot be read or has no line that is not blank.
  explicit JsonlFile(std::string path);
  ~JsonlFile();
  JsonlFile(JsonlFile&&) noexcept;
  JsonlFile& operator=(JsonlFile&&) = delete;

  const std::string& path() const { return path_; }
  int64_t bytes() const { return bytes_; }
  uint64_t hash() const { return hash_; }  // XXH3 of the whole file, as it was indexed

  // Samples: lines that are not blank.
  int64_t samples() const { return static_cast<int64_t>(lines_.size()); }
  int64_t line_number(int64_t sample) const { return lines_[sample].number; }  // 1-based, blank lines counted
  // The line without its end. Throws DataError for a line beyond kMaxLineBytes and where the file has become shorter.
  std::string read(int64_t sample) const;

 private:
  struct Line {
    uint64_t offset;
    uint32_t bytes;  // kMaxLineBytes + 1 for anything longer
    uint32_t number;
  };
  void index();

  std::string path_;
  int descriptor_ = -1;
  int64_t bytes_ = 0;
  uint64_t hash_ = 0;
  std::vector<Line> lines_;
};

}  // namespace hyperparallel::data
