// Tables of which a step uses few rows, however many there are: rows live in memory of the host or in a mapped file, begin when
// they are first looked up, and get gradients by rows. Nothing here costs time or resident memory for rows that nobody uses.
//
// NOTE [Rows that have not begun]: the start value of a row is a pure function of its number, so it is computed when the row is
// first needed, and whoever reads it before (a checkpoint, a check) computes the same value. A row has begun once a look-up, an
// update or a loaded value wrote it.
#pragma once

#include "base/aten.h"

#include <filesystem>
#include <functional>
#include <memory>
#include <vector>

#include "base/mapped_memory.h"

namespace hyperparallel::engine {

// Gradients of rows, each row once, ascending.
struct RowGradients {
  at::Tensor rows;    // int64 [n]
  at::Tensor values;  // [n, width]
};
// ids int64 [n], with repeats; values [n, width] -> the sum over the repeats, in their order.
RowGradients merge_rows(const at::Tensor& ids, const at::Tensor& values);

// [rows, width] of FP32 or FP64. One thread uses it; will_need alone may be called by another.
class RowTable {
 public:
  // Writes the start values of rows `first` .. `first + count - 1`, row-major, of the table's type.
  using Start = std::function<void(int64_t first, int64_t count, void* values)>;

  // Rows begin as zeros until `begin_as`. An empty folder: memory of the process; else a file in it that has no name. Throws
  // file::FileError.
  RowTable(int64_t rows, int64_t width, at::ScalarType type, std::filesystem::path folder = {});
  // Another of that size, type and kind of memory, of zeros.
  std::unique_ptr<RowTable> like() const;

  int64_t rows() const { return rows_; }
  int64_t width() const { return width_; }
  at::ScalarType type() const { return type_; }

  // No row has begun any more; they will as `start` says.
  void begin_as(Start start);

  // ids int64 [n] -> [n, width]; a negative id gives zeros. Throws InternalError for others outside the table, as the rest.
  at::Tensor look_up(const at::Tensor& ids);
  // The table itself, [rows, width], of which only `ids` (none negative) may be read or written, with their values of now.
  at::Tensor begun(const at::Tensor& ids);
  at::Tensor whole();  // likewise of all rows

  // Rows `first` .. as they are or would begin, into `out` [count, width]; leaves no trace.
  void read(int64_t first, at::Tensor out) const;
  // Gives rows `first` .. the values of `rows` [count, width]. Rows that begin with these values anyway are left as they are.
  void write(int64_t first, const at::Tensor& rows);

  // All rows in turn, in pieces of some MiB, as `read` and `write` do; a piece is valid until the next.
  void for_pieces(const std::function<void(int64_t first, const at::Tensor& rows)>& body) const;
  void fill(const std::function<at::Tensor(int64_t first, int64_t count)>& values);

  int64_t begun_rows() const { return begun_rows_; }
  std::vector<int64_t> rows_that_differ_from_zero() const;  // ascending

  // The system may begin to read these rows from the file. Thread-safe.
  void will_need(const at::Tensor& ids) const;
  void drop_pages() const { memory_.drop_pages(); }  // for measurements: what is in a file has to be read again

 private:
  bool has_begun(int64_t row) const { return (bits_[row / 64] >> (row % 64) & 1) != 0; }
  void begin(int64_t row);
  void mark(int64_t row);
  size_t row_bytes() const { return static_cast<size_t>(width_) * at::elementSize(type_); }
  void start_values(int64_t first, int64_t count, void* values) const;
  void check(const int64_t* ids, int64_t count, int64_t lowest) const;

  int64_t rows_, width_;
  at::ScalarType type_;
  std::filesystem::path folder_;
  file::MappedMemory memory_, begun_;  // values; a bit for each row
  uint64_t* bits_;
  at::Tensor table_;
  Start start_;
  int64_t begun_rows_ = 0;
};

}  // namespace hyperparallel::engine
