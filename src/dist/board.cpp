#include "dist/board.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

namespace hyperparallel::dist {

void LastCall::write(const std::string& group, const CallHeader& header) {
  Record record;
  std::memset(&record, 0, sizeof(record));
  group.copy(record.group, sizeof(record.group) - 1);
  record.header = header;
  std::array<uint64_t, kWords> words{};
  std::memcpy(words.data(), &record, sizeof(record));
  const uint64_t version = version_.load(std::memory_order_relaxed);
  version_.store(version + 1);
  for (size_t i = 0; i < kWords; ++i) words_[i].store(words[i], std::memory_order_release);
  version_.store(version + 2, std::memory_order_release);
}

bool LastCall::read(Record& record) const {
  for (int attempt = 0; attempt < 100; ++attempt) {
    const uint64_t version = version_.load(std::memory_order_acquire);
    if (version == 0) return false;
    std::array<uint64_t, kWords> words;
    for (size_t i = 0; i < kWords; ++i) words[i] = words_[i].load(std::memory_order_acquire);
    if (version % 2 == 1 || version_.load() != version) continue;
    std::memcpy(&record, words.data(), sizeof(record));
    return true;
  }
  return false;
}

Board::Board(int rank, std::vector<LastCall*> shared) : rank_(rank), shared_(std::move(shared)), own_(shared_.size()) {}

void Board::post(const std::string& group, const CallHeader& header) {
  std::lock_guard lock(mutex_);
  if (shared_[rank_] != nullptr) shared_[rank_]->write(group, header);
}

void Board::hear(int rank, const std::string& group, const CallHeader& header) {
  std::lock_guard lock(mutex_);
  if (shared_[rank] == nullptr) own_[rank].write(group, header);
}

bool Board::has_called(int rank, const std::string& group, int64_t sequence) const {
  LastCall::Record last;
  if (shared_[rank] == nullptr || !shared_[rank]->read(last)) return false;
  const Operation operation = last.header.operation;
  return operation != Operation::kSend && operation != Operation::kReceive && group == last.group &&
         last.header.sequence >= sequence;
}

std::string Board::last_call_text(int rank) const {
  const bool is_here = shared_[rank] != nullptr;
  LastCall::Record last;
  if (!(is_here ? *shared_[rank] : own_[rank]).read(last)) {
    return is_here ? "; it has called nothing yet" : "; nothing has been heard of it";
  }
  return fmt::format("; {} {} in group \"{}\"", is_here ? "its last call is" : "the last call heard of it is",
                     describe(last.header), last.group);
}

}  // namespace hyperparallel::dist
