#include "dist/window_queue.h"

#include <fmt/format.h>

#include <limits>
#include <thread>

#include "dist/failure.h"
#include "dist/mpi_progress.h"

namespace hyperparallel::dist {
namespace {

using namespace std::chrono_literals;

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();
constexpr auto kSpin = 100us;       // for the others to come: longer than it takes to wake one that sleeps
constexpr auto kPause = 2us;        // of it without giving way to other threads
constexpr auto kRoundSpin = 200us;  // for the next round of a call that all have come to: they are copying
constexpr auto kLook = 100ms;       // how often a sleeper looks for ranks that are gone

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

WindowQueue::WindowQueue(MpiProgress& progress, const GroupOptions& options, int rank, int group_index)
    : progress_(progress), options_(options) {
  set_.members = options.members;
  set_.rank = rank;
  for (int member : options.members) {
    set_.windows.push_back(&progress.host()->window(member, group_index));
    if (member != options.members[rank]) set_.bells.push_back(&progress.host()->bell(member));
  }
}

std::shared_ptr<WindowExchange> WindowQueue::start(Call call) {
  auto exchange = std::make_shared<WindowExchange>(std::move(call), set_.rank, static_cast<int>(set_.members.size()));
  std::lock_guard lock(mutex_);
  calls_.push_back(exchange);
  if (calls_.size() == 1 && exchange->is_short()) {
    advance(kNoLimit);
  } else if (!has_background_) {
    has_background_ = true;
    progress_.bell().ring();
  }
  if (progress_.has_failed() && exchange->error.empty()) exchange->error = failure_of(*exchange);
  return exchange;
}

bool WindowQueue::has_ended(WindowExchange& exchange) {
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock) return false;
  advance(kNoLimit);
  if (exchange.is_complete() || !exchange.error.empty() || progress_.has_failed()) return true;
  if (Clock::now() < next_look_) return false;
  next_look_ = Clock::now() + kLook;
  return !trouble(exchange, /*has_expired=*/false).empty();
}

at::Tensor WindowQueue::wait(WindowExchange& exchange, Deadline::Clock::time_point deadline) {
  is_awaited_ = true;
  {
    std::lock_guard lock(mutex_);
    advance(kNoLimit);
    const auto has_ended = [&] { return exchange.is_complete() || !exchange.error.empty(); };
    while (!has_ended() && spin(exchange)) {
    }
    if (!has_ended()) sleep(exchange, deadline);
  }
  is_awaited_ = false;
  if (has_background_) progress_.bell().ring();
  if (!exchange.error.empty()) throw PeerError("{}", exchange.error);
  return exchange.take_result();
}

bool WindowQueue::advance_in_background() {
  std::unique_lock lock(mutex_, std::try_to_lock);
  return lock && needs_background() && advance(1);
}

// The oldest call first; the next begins when it is complete.
bool WindowQueue::advance(int64_t most_rounds) {
  bool has_moved = false;
  while (!calls_.empty() && calls_.front()->error.empty()) {
    WindowExchange& oldest = *calls_.front();
    try {
      has_moved |= oldest.advance(set_, most_rounds);
    } catch (const std::exception&) {
      oldest.error = message(oldest, current_failure().message);
      progress_.fail({ExitCode::kPeer, oldest.error});
      return true;
    }
    if (!oldest.is_complete()) break;
    calls_.pop_front();
    has_background_ = has_background_ && !calls_.empty();
  }
  return has_moved;
}

// Looks for the others for a short time; false when nothing came, or when a spin would take a hardware thread from another rank.
bool WindowQueue::spin(const WindowExchange& exchange) {
  if (!progress_.host()->has_threads_for_all()) return false;
  const auto start = Clock::now();
  const auto end = start + (exchange.has_begun() ? Clock::duration(kRoundSpin) : Clock::duration(kSpin));
  for (auto now = start; now < end; now = Clock::now()) {
    for (int i = 0; i < 16; ++i) {
      if (advance(kNoLimit)) return true;
      pause();
    }
    // The other may wait for this very hardware thread.
    if (now - start > kPause) std::this_thread::yield();
  }
  return false;
}

// Until the call has ended; leaves its error where it failed.
void WindowQueue::sleep(WindowExchange& exchange, Deadline::Clock::time_point deadline) {
  Bell& bell = progress_.bell();
  auto next_look = Clock::now() + kLook;
  bell.listen();
  while (true) {
    const uint32_t seen = bell.rings();
    const bool has_moved = advance(kNoLimit);
    if (exchange.is_complete() || !exchange.error.empty()) break;
    if (has_moved || spin(exchange)) continue;
    const auto now = Clock::now();
    if (progress_.has_failed()) {
      exchange.error = failure_of(exchange);
      break;
    }
    if (now >= std::min(next_look, deadline)) {
      next_look = now + kLook;
      if (const std::string reason = trouble(exchange, now >= deadline); !reason.empty()) {
        exchange.error = message(exchange, reason);
        progress_.fail({ExitCode::kPeer, exchange.error});
        break;
      }
    }
    bell.sleep(seen, std::min(next_look, deadline) - now);
  }
  bell.stop_listening();
}

std::string WindowQueue::message(const WindowExchange& exchange, const std::string& reason) const {
  return fmt::format("{}: {}", describe(options_, set_.rank, exchange.header()), reason);
}

std::string WindowQueue::failure_of(const WindowExchange& exchange) const {
  return message(exchange, progress_.failure_text());
}

// Why the call does not get on, if it is time to say so.
std::string WindowQueue::trouble(const WindowExchange& exchange, bool has_expired) const {
  const WindowExchange& oldest = *calls_.front();
  std::vector<int> absent = oldest.absent(set_), unfinished = oldest.unfinished(set_);
  // A rank may have called without having shown anything yet.
  std::erase_if(absent, [&](int rank) {
    const bool has_called = progress_.board().has_called(rank, options_.name, oldest.header().sequence);
    if (has_called) unfinished.push_back(rank);
    return has_called;
  });
  std::vector<int> all = absent;
  all.insert(all.end(), unfinished.begin(), unfinished.end());
  std::string text = progress_.gone_text(all);
  if (text.empty() && has_expired) text = progress_.missing_text(absent, unfinished, options_.timeout.count());
  if (text.empty() || &oldest == &exchange) return text;
  return fmt::format("it comes after {}: {}", describe(oldest.header()), text);
}

}  // namespace hyperparallel::dist
