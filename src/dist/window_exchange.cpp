#include "dist/window_exchange.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/error.h"
#include "dist/copy.h"

namespace hyperparallel::dist {
namespace {

constexpr int64_t kShort = 16 << 10;  // bytes that the calling thread copies at once
constexpr int64_t kLarge = 4 << 20;   // bytes of a result that no cache of a core holds
constexpr int64_t kAlignment = 64;    // of chunks: whole elements of any type

int64_t divide_up(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

int64_t row_bytes(const Call& call) {
  int64_t bytes = static_cast<int64_t>(call.input.element_size());
  for (int64_t size : call.input.sizes().slice(1)) bytes *= size;
  return bytes;
}

}  // namespace

WindowExchange::WindowExchange(Call call, int rank, int size) : call_(std::move(call)), rank_(rank), size_(size) {
  const auto bytes = static_cast<int64_t>(call_.input.nbytes());
  in_pieces_ = call_.operation == Operation::kAllReduce && bytes >= kLargeSum;
  same_for_all_ = call_.same_rows_for_all && !in_pieces_;
  chunk_ = same_for_all_ ? Window::kBytes : Window::kBytes / (size_ - 1) / kAlignment * kAlignment;
  result_ = at::empty(call_.result_shape, call_.input.options());
  outgoing_.resize(size_);
  incoming_.resize(size_);
  in_pieces_ ? plan_pieces() : plan_rows();
  is_large_ = static_cast<int64_t>(result_.nbytes()) >= kLarge;
  is_short_ = rounds_ == 1 && bytes <= kShort && static_cast<int64_t>(result_.nbytes()) <= kShort;
}

void WindowExchange::plan_rows() {
  const int64_t row = row_bytes(call_);
  char* out = const_cast<char*>(static_cast<const char*>(call_.input.const_data_ptr()));
  char* in = static_cast<char*>(result_.mutable_data_ptr());
  summed_ = {in, static_cast<int64_t>(result_.nbytes())};
  int64_t longest = 0;
  for (int member = 0; member < size_; ++member) {
    outgoing_[member] = {out, call_.send_rows[member] * row};
    if (!same_for_all_) out += outgoing_[member].size;
    if (!call_.reduces()) {
      incoming_[member] = {in, call_.receive_rows[member] * row};
      in += incoming_[member].size;
    }
    if (member != rank_) longest = std::max(longest, outgoing_[member].size);
  }
  rounds_ = std::max<int64_t>(1, divide_up(longest, chunk_));
}

void WindowExchange::plan_pieces() {
  const int64_t count = call_.input.numel(), element = static_cast<int64_t>(call_.input.element_size());
  char* const out = const_cast<char*>(static_cast<const char*>(call_.input.const_data_ptr()));
  char* const in = static_cast<char*>(result_.mutable_data_ptr());
  int64_t longest = 0;
  for (int member = 0; member < size_; ++member) {
    const int64_t begin = count * member / size_ * element, end = count * (member + 1) / size_ * element;
    outgoing_[member] = {out + begin, end - begin};
    incoming_[member] = {in + begin, end - begin};
    longest = std::max(longest, end - begin);
  }
  summed_ = incoming_[rank_];
  rounds_ = 2 * divide_up(longest, chunk_);
}

WindowExchange::Bytes WindowExchange::cut(const Bytes& bytes, int64_t step) const {
  const int64_t begin = std::min(bytes.size, step * chunk_);
  return {bytes.data + begin, std::min(bytes.size - begin, chunk_)};
}

bool WindowExchange::advance(WindowSet& set, int64_t most_rounds) {
  bool has_moved = false;
  while (!is_complete_ && most_rounds > 0) {
    const uint64_t round = set.rounds_done + 1;
    if (!is_shown_) {
      Window& own = *set.windows[rank_];
      show(own.halves[round % 2]);
      own.posted = round;
      for (Bell* bell : set.bells) bell->ring_for_listeners();
      is_shown_ = has_moved = true;
    }
    for (const Window* window : set.windows) {
      if (window->posted < round) return has_moved;
    }
    if (next_ == 0) accept_headers(set, round);
    read(set, round);
    is_shown_ = false;
    has_moved = true;
    set.rounds_done = round;
    is_complete_ = ++next_ == rounds_;
    --most_rounds;
  }
  return has_moved;
}

void WindowExchange::show(Window::Half& half) const {
  if (next_ == 0) {
    half.header = header_for(call_, rank_);
    half.rounds = rounds_;
    std::copy(call_.send_rows.begin(), call_.send_rows.end(), half.rows_to);
    std::copy(call_.receive_rows.begin(), call_.receive_rows.end(), half.rows_from);
  }
  const auto show_at = [&](int64_t offset, const Bytes& bytes) {
    if (bytes.size > 0) copy_past_caches(half.rows + offset, bytes.data, bytes.size);
  };
  if (shows_sums()) {
    show_at(0, cut(summed_, step()));
  } else if (same_for_all_) {
    show_at(0, cut(outgoing_[rank_], step()));
  } else {
    for (int member = 0; member < size_; ++member) {
      if (member != rank_) show_at(offset(rank_, member), cut(outgoing_[member], step()));
    }
  }
}

void WindowExchange::accept_headers(const WindowSet& set, uint64_t round) {
  for (int member = 0; member < size_; ++member) {
    if (member == rank_) continue;
    const Window::Half& half = set.windows[member]->halves[round % 2];
    CallHeader theirs = half.header;
    theirs.rows_to_you = half.rows_to[rank_];
    theirs.rows_from_you = half.rows_from[rank_];
    const std::string difference = mismatch(header_for(call_, member), theirs);
    if (!difference.empty()) {
      throw PeerError("the calls do not fit ({}); rank {} called {}", difference, set.members[member], describe(theirs));
    }
    rounds_ = std::max(rounds_, half.rounds);
  }
}

void WindowExchange::read(const WindowSet& set, uint64_t round) {
  if (call_.reduces() && !shows_sums()) {
    read_sums(set, round, step());
  } else {
    read_rows(set, round, step());
  }
}

void WindowExchange::read_sums(const WindowSet& set, uint64_t round, int64_t step) {
  const Bytes out = cut(summed_, step);
  if (out.size <= 0) return;
  std::array<const void*, Window::kMostMembers> parts;
  for (int member = 0; member < size_; ++member) {
    parts[member] = member == rank_ ? cut(outgoing_[rank_], step).data
                                    : set.windows[member]->halves[round % 2].rows + (same_for_all_ ? 0 : offset(member, rank_));
  }
  reduce_elements(out.data, std::span(parts.data(), size_), out.size / static_cast<int64_t>(call_.input.element_size()),
                  call_.input.scalar_type(), call_.reduction);
}

void WindowExchange::read_rows(const WindowSet& set, uint64_t round, int64_t step) {
  const auto copy = [&](const Bytes& to, const char* from) {
    if (to.size <= 0) return;
    is_large_ ? copy_past_caches(to.data, from, to.size) : void(std::memcpy(to.data, from, to.size));
  };
  const bool at_offset = !same_for_all_ && !shows_sums();
  for (int member = 0; member < size_; ++member) {
    if (member != rank_) {
      const Bytes in = cut(incoming_[member], step);
      const char* rows = set.windows[member]->halves[round % 2].rows + (at_offset ? offset(member, rank_) : 0);
      copy(in, rows);
    } else if (!in_pieces_) {
      // This rank's own rows may be more than any that go through windows.
      Bytes own = cut(incoming_[rank_], step);
      if (next_ + 1 == rounds_) own.size = incoming_[rank_].data + incoming_[rank_].size - own.data;
      copy(own, cut(outgoing_[rank_], step).data);
    }
  }
}

at::Tensor WindowExchange::take_result() {
  call_.input.reset();
  return std::move(result_);
}

std::vector<int> WindowExchange::absent(const WindowSet& set) const {
  std::vector<int> ranks;
  for (int member = 0; member < size_; ++member) {
    if (next_ == 0 && member != rank_ && set.windows[member]->posted <= set.rounds_done) ranks.push_back(set.members[member]);
  }
  return ranks;
}

std::vector<int> WindowExchange::unfinished(const WindowSet& set) const {
  std::vector<int> ranks;
  for (int member = 0; member < size_; ++member) {
    if (next_ > 0 && set.windows[member]->posted <= set.rounds_done) ranks.push_back(set.members[member]);
  }
  return ranks;
}

}  // namespace hyperparallel::dist
