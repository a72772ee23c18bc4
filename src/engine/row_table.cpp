#include "engine/row_table.h"

#include <ATen/Parallel.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "kernels/rows/op.h"

namespace hyperparallel::engine {
namespace {

int64_t rows_of_a_piece(int64_t width) {
  constexpr int64_t kElements = 4 << 20;
  return std::max<int64_t>(1, kElements / std::max<int64_t>(1, width));
}

}  // namespace

RowGradients merge_rows(const at::Tensor& ids, const at::Tensor& values) {
  HP_CHECK(ids.dim() == 1 && values.dim() == 2 && ids.size(0) == values.size(0), "{} rows with ids of shape [{}]", values.size(0),
           fmt::join(ids.sizes(), ", "));
  const auto [rows, places] = at::_unique(ids, /*sorted=*/true, /*return_inverse=*/true);
  at::Tensor sums = at::zeros({rows.size(0), values.size(1)}, values.options());
  kernels::scatter_add_rows(sums, places, values);
  return {rows, sums};
}

RowTable::RowTable(int64_t rows, int64_t width, at::ScalarType type, std::filesystem::path folder)
    : rows_(rows),
      width_(width),
      type_(type),
      folder_(std::move(folder)),
      memory_(static_cast<size_t>(rows) * row_bytes(), folder_),
      begun_(static_cast<size_t>(rows + 63) / 64 * 8),
      bits_(static_cast<uint64_t*>(begun_.data())) {
  HP_CHECK(type == at::kFloat || type == at::kDouble, "a table of {}", at::toString(type));
  const auto options = at::TensorOptions().dtype(type);
  table_ = memory_.data() == nullptr ? at::empty({rows, width}, options) : at::from_blob(memory_.data(), {rows, width}, options);
}

std::unique_ptr<RowTable> RowTable::like() const {
  return std::make_unique<RowTable>(rows_, width_, type_, folder_);
}

void RowTable::begin_as(Start start) {
  start_ = std::move(start);
  if (begun_rows_ > 0) std::memset(bits_, 0, begun_.size());
  begun_rows_ = 0;
}

void RowTable::start_values(int64_t first, int64_t count, void* values) const {
  if (start_) {
    start_(first, count, values);
  } else {
    std::memset(values, 0, static_cast<size_t>(count) * row_bytes());
  }
}

void RowTable::mark(int64_t row) {
  if (has_begun(row)) return;
  bits_[row / 64] |= uint64_t{1} << (row % 64);
  ++begun_rows_;
}

void RowTable::begin(int64_t row) {
  if (has_begun(row)) return;
  std::vector<char> values(row_bytes());
  start_values(row, 1, values.data());
  memory_.write(static_cast<size_t>(row) * row_bytes(), values.data(), values.size());
  mark(row);
}

void RowTable::check(const int64_t* ids, int64_t count, int64_t lowest) const {
  for (int64_t i = 0; i < count; ++i) HP_CHECK(ids[i] >= lowest && ids[i] < rows_, "row {} of a table of {}", ids[i], rows_);
}

at::Tensor RowTable::look_up(const at::Tensor& ids) {
  const at::Tensor rows = ids.contiguous();
  const int64_t* row = rows.const_data_ptr<int64_t>();
  const int64_t count = rows.numel();
  check(row, count, std::numeric_limits<int64_t>::min());
  for (int64_t i = 0; i < count; ++i) {
    if (row[i] >= 0) begin(row[i]);
  }
  at::Tensor found = at::empty({count, width_}, table_.options());
  const char* from = static_cast<const char*>(memory_.data());
  char* to = static_cast<char*>(found.data_ptr());
  const size_t bytes = row_bytes();
  at::parallel_for(0, count, std::max<int64_t>(1, 16384 / std::max<int64_t>(1, width_)), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      char* place = to + static_cast<size_t>(i) * bytes;
      if (row[i] < 0) {
        std::memset(place, 0, bytes);
      } else {
        std::memcpy(place, from + static_cast<size_t>(row[i]) * bytes, bytes);
      }
    }
  });
  return found;
}

at::Tensor RowTable::begun(const at::Tensor& ids) {
  const at::Tensor rows = ids.contiguous();
  const int64_t* row = rows.const_data_ptr<int64_t>();
  check(row, rows.numel(), 0);
  for (int64_t i = 0; i < rows.numel(); ++i) begin(row[i]);
  return table_;
}

at::Tensor RowTable::whole() {
  for (int64_t row = 0; row < rows_; ++row) begin(row);
  return table_;
}

void RowTable::read(int64_t first, at::Tensor out) const {
  const int64_t count = out.size(0);
  HP_CHECK(first >= 0 && count <= rows_ - first && out.size(1) == width_ && out.scalar_type() == type_ && out.is_contiguous(),
           "rows {} to {} of a table of {}", first, first + count, rows_);
  char* to = static_cast<char*>(out.data_ptr());
  const char* from = static_cast<const char*>(memory_.data()) + static_cast<size_t>(first) * row_bytes();
  for (int64_t i = 0; i < count;) {  // runs of rows alike
    int64_t end = i + 1;
    while (end < count && has_begun(first + end) == has_begun(first + i)) ++end;
    const size_t offset = static_cast<size_t>(i) * row_bytes(), bytes = static_cast<size_t>(end - i) * row_bytes();
    if (has_begun(first + i)) {
      std::memcpy(to + offset, from + offset, bytes);
    } else {
      start_values(first + i, end - i, to + offset);
    }
    i = end;
  }
}

void RowTable::write(int64_t first, const at::Tensor& rows) {
  const at::Tensor given = rows.to(type_).contiguous();
  HP_CHECK(first >= 0 && given.size(0) <= rows_ - first && given.size(1) == width_, "rows {} to {} of a table of {}", first,
           first + given.size(0), rows_);
  at::Tensor now = at::empty_like(given);
  read(first, now);
  const char *from = static_cast<const char*>(given.const_data_ptr()), *old = static_cast<const char*>(now.const_data_ptr());
  for (int64_t i = 0; i < given.size(0); ++i) {
    const size_t offset = static_cast<size_t>(i) * row_bytes();
    if (std::memcmp(from + offset, old + offset, row_bytes()) == 0) continue;
    memory_.write(static_cast<size_t>(first) * row_bytes() + offset, from + offset, row_bytes());
    mark(first + i);
  }
}

void RowTable::for_pieces(const std::function<void(int64_t, const at::Tensor&)>& body) const {
  const int64_t at_once = rows_of_a_piece(width_);
  const at::Tensor buffer = at::empty({std::min(at_once, rows_), width_}, table_.options());
  for (int64_t first = 0; first < rows_; first += at_once) {
    const at::Tensor piece = buffer.narrow(0, 0, std::min(at_once, rows_ - first));
    read(first, piece);
    body(first, piece);
  }
}

void RowTable::fill(const std::function<at::Tensor(int64_t, int64_t)>& values) {
  const int64_t at_once = rows_of_a_piece(width_);
  for (int64_t first = 0; first < rows_; first += at_once) write(first, values(first, std::min(at_once, rows_ - first)));
}

std::vector<int64_t> RowTable::rows_that_differ_from_zero() const {
  std::vector<int64_t> rows;
  const at::Tensor values = at::empty({1, width_}, table_.options());
  for (int64_t word = 0; word * 64 < rows_; ++word) {
    if (bits_[word] == 0 && !start_) continue;
    for (int64_t row = word * 64; row < std::min(rows_, word * 64 + 64); ++row) {
      read(row, values);
      if (values.ne(0).any().item<bool>()) rows.push_back(row);
    }
  }
  return rows;
}

void RowTable::will_need(const at::Tensor& ids) const {
  if (!memory_.is_file()) return;
  std::vector<std::pair<size_t, size_t>> ranges;
  const at::Tensor rows = ids.contiguous();
  for (int64_t i = 0; i < rows.numel(); ++i) {
    const int64_t row = rows.const_data_ptr<int64_t>()[i];
    if (row >= 0 && row < rows_) ranges.emplace_back(static_cast<size_t>(row) * row_bytes(), row_bytes());
  }
  memory_.will_need(ranges);
}

}  // namespace hyperparallel::engine
