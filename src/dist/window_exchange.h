// One call under way through the windows of its group's members (window.h). Internal to mpi_comm.
//
// A round carries up to Window::kBytes of what a member sends: of the same rows for all, or in equal parts of the window what it
// has for each member. Short calls are one round. A large all_reduce takes two kinds of rounds in turn: each member gets its
// share of the tensor from all and sums it, then shows its sums to all.
#pragma once

#include <string>
#include <vector>

#include "dist/bell.h"
#include "dist/call.h"
#include "dist/window.h"

namespace hyperparallel::dist {

// The windows of a group on one host, and how many rounds this rank has behind it.
struct WindowSet {
  std::vector<Window*> windows;  // by member
  std::vector<Bell*> bells;      // of the other members
  std::vector<int> members;      // world ranks
  int rank = 0;                  // in the group
  uint64_t rounds_done = 0;
};

class WindowExchange {
 public:
  // `error` will be set where the call failed.
  std::string error;

  WindowExchange(Call call, int rank, int size);

  // A call that needs one round and little copying.
  bool is_short() const { return is_short_; }
  bool has_begun() const { return next_ > 0; }  // all members have called it
  bool is_complete() const { return is_complete_; }
  // Moves on as far as it can, at most so many rounds; true when anything moved. The call must be the oldest of the group that
  // is not complete. Throws PeerError, with what does not fit, when a member called something else.
  bool advance(WindowSet& set, int64_t most_rounds);

  CallHeader header() const { return header_for(call_, rank_); }
  at::Tensor take_result();
  // World ranks that have not called this, and those whose rows are not all here. Of the oldest call.
  std::vector<int> absent(const WindowSet& set) const;
  std::vector<int> unfinished(const WindowSet& set) const;

 private:
  struct Bytes {
    char* data = nullptr;  // of outgoing rows only read
    int64_t size = 0;
  };

  void plan_rows();
  void plan_pieces();
  void show(Window::Half& half) const;
  void accept_headers(const WindowSet& set, uint64_t round);
  void read(const WindowSet& set, uint64_t round);
  void read_sums(const WindowSet& set, uint64_t round, int64_t step);
  void read_rows(const WindowSet& set, uint64_t round, int64_t step);
  bool shows_sums() const { return in_pieces_ && next_ % 2 == 1; }
  int64_t step() const { return in_pieces_ ? next_ / 2 : next_; }
  Bytes cut(const Bytes& bytes, int64_t step) const;  // what goes in a round
  // Where in the rows of a half `writer` shows what it has for `reader` alone.
  int64_t offset(int writer, int reader) const { return chunk_ * (reader < writer ? reader : reader - 1); }

  Call call_;
  int rank_, size_;
  at::Tensor result_;
  std::vector<Bytes> outgoing_, incoming_;  // by member: in the input, in result_
  Bytes summed_;                            // where this rank's sums go, in result_
  int64_t chunk_ = 0;                       // bytes for one member in a round
  bool same_for_all_, in_pieces_, is_short_, is_large_;
  int64_t rounds_ = 1, next_ = 0;  // `rounds_` is what this rank needs until it has read all headers
  bool is_shown_ = false, is_complete_ = false;
};

}  // namespace hyperparallel::dist
