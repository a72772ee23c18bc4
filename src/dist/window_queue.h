// The calls of one group whose members share memory, in the order in which they were made. Internal to mpi_comm.
//
// NOTE [Who moves a call]: whoever holds the queue's lock. The thread that waits for a call moves it itself, with a short spin
// and then asleep at its bell, and short calls are shown to the others as they start: two ranks that call at once need no other
// thread. Meanwhile the progress thread moves what nobody waits for. A single short call needs nobody: what this rank owes to the
// others is in its window, and they need nothing more of it before its next call of the group.
#pragma once

#include <atomic>
#include <chrono>
#include <deque>
#include <memory>
#include <mutex>

#include "dist/group.h"
#include "dist/window_exchange.h"

namespace hyperparallel::dist {

class MpiProgress;

class WindowQueue {
 public:
  // `rank` is this rank's place in the group; `group_index` tells the windows of groups apart.
  WindowQueue(MpiProgress& progress, const GroupOptions& options, int rank, int group_index);

  std::shared_ptr<WindowExchange> start(Call call);
  // Throws PeerError.
  at::Tensor wait(WindowExchange& exchange, Deadline::Clock::time_point deadline);
  // Moves it where it can; whether it is complete or will never be.
  bool has_ended(WindowExchange& exchange);

  // For the progress thread: whether there is something that nobody else moves; moves it by a round. True when anything moved.
  bool needs_background() const { return has_background_ && !is_awaited_; }
  bool advance_in_background();
  Lane lane() const { return options_.lane; }

 private:
  using Clock = std::chrono::steady_clock;

  bool advance(int64_t most_rounds);
  bool spin(const WindowExchange& exchange);
  void sleep(WindowExchange& exchange, Deadline::Clock::time_point deadline);
  std::string message(const WindowExchange& exchange, const std::string& reason) const;
  std::string failure_of(const WindowExchange& exchange) const;
  std::string trouble(const WindowExchange& exchange, bool has_expired) const;

  MpiProgress& progress_;
  const GroupOptions options_;
  std::atomic<bool> has_background_{false}, is_awaited_{false};
  std::mutex mutex_;  // guards all below
  WindowSet set_;
  Clock::time_point next_look_;                        // of has_ended, for ranks that are gone
  std::deque<std::shared_ptr<WindowExchange>> calls_;  // not complete
};

}  // namespace hyperparallel::dist
