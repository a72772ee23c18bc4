// Packing: whole samples are laid into rows of fixed width, first fit, without cutting any; rows become micro-batches.
#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "data/batch.h"
#include "data/sample.h"

namespace hyperparallel::data {

// Samples that share a row, in token order.
template <class Item>
struct PackedRow {
  std::vector<Item> items;
  int64_t tokens = 0;
};

// First fit over a bounded buffer of open rows: a sample goes into the oldest open row that has room. Where none has, a new row
// is opened; more than `open_rows` of them, and the oldest is given out. A full row is given out at once. Depends on nothing but
// the order and the lengths of the samples.
template <class Item>
class Packer {
 public:
  // Rows hold `row_tokens`; with `open_rows` = 0 each sample has a row of its own.
  Packer(int64_t row_tokens, int64_t open_rows) : row_tokens_(row_tokens), open_rows_(open_rows) {}

  // Adds a sample of at most row_tokens tokens. Appends the rows that are finished by it to `finished`.
  void add(Item item, int64_t tokens, std::deque<PackedRow<Item>>& finished) {
    HP_CHECK(tokens <= row_tokens_, "a sample of {} tokens does not fit a row of {}", tokens, row_tokens_);
    size_t row = 0;
    while (row < open_.size() && open_[row].tokens + tokens > row_tokens_) ++row;
    if (row == open_.size()) open_.emplace_back();
    open_[row].items.push_back(std::move(item));
    open_[row].tokens += tokens;
    if (open_[row].tokens == row_tokens_) {
      give_out(row, finished);
    } else if (static_cast<int64_t>(open_.size()) > open_rows_) {
      give_out(0, finished);
    }
  }
  // Gives out all open rows, oldest first.
  void finish(std::deque<PackedRow<Item>>& finished) {
    while (!open_.empty()) give_out(0, finished);
  }
  const std::deque<PackedRow<Item>>& open() const { return open_; }
  void restore_open(std::deque<PackedRow<Item>> rows) { open_ = std::move(rows); }

 private:
  void give_out(size_t row, std::deque<PackedRow<Item>>& finished) {
    finished.push_back(std::move(open_[row]));
    open_.erase(open_.begin() + static_cast<std::ptrdiff_t>(row));
  }

  int64_t row_tokens_, open_rows_;
  std::deque<PackedRow<Item>> open_;
};

// Lays rows of samples out as one micro-batch, `seq_len` wide (each row has at most that many tokens); tails are padding, and so
// is an empty row. Pictures are cut into patches here.
MicroBatch make_micro_batch(const std::vector<std::vector<const Sample*>>& rows, int64_t seq_len, int64_t pad_id,
                            int64_t patch_size);
// The outline of that micro-batch.
BatchOutline outline_of(const std::vector<std::vector<const Sample*>>& rows, int64_t seq_len);

}  // namespace hyperparallel::data
