// Where threads sleep until another thread, of this or another process, has news: a futex. It lies in memory that is zero at the
// start; a process that dies leaves nothing locked.
//
// NOTE [No wake-up is lost]: every access below, and to what a listener waits for, is sequentially consistent. A listener first
// counts itself, then reads `rings`, then looks for news, then sleeps if `rings` has not changed. Who has news stores them, then
// looks at the count. In the one order of all these accesses either the count comes first, and the bell is rung, or the
// news come first, and the listener finds them.
#pragma once

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <climits>
#include <cstdint>
#include <ctime>

namespace hyperparallel::dist {

class Bell {
 public:
  uint32_t rings() const { return rings_; }
  // Wakes everybody who sleeps here.
  void ring() {
    ++rings_;
    syscall(SYS_futex, &rings_, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
  }
  // For news that only listeners need: costs a look where nobody listens.
  void ring_for_listeners() {
    if (listeners_ > 0) ring();
  }
  void listen() { ++listeners_; }
  void stop_listening() { --listeners_; }
  // Returns when the bell has been rung since `rings()` gave `seen`, or at the limit, or for no reason.
  void sleep(uint32_t seen, std::chrono::nanoseconds limit) {
    const int64_t nanoseconds = std::max<int64_t>(limit.count(), 0);
    const timespec time{.tv_sec = nanoseconds / 1'000'000'000, .tv_nsec = nanoseconds % 1'000'000'000};
    syscall(SYS_futex, &rings_, FUTEX_WAIT, seen, &time, nullptr, 0);
  }

 private:
  std::atomic<uint32_t> rings_{0}, listeners_{0};
  static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t) && std::atomic<uint32_t>::is_always_lock_free);
};

}  // namespace hyperparallel::dist
