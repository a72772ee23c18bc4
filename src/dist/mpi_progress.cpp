#include "dist/mpi_progress.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <cstdlib>

#include "base/error.h"
#include "dist/hardware_threads.h"
#include "dist/mpi_error.h"

namespace hyperparallel::dist {
namespace {

using namespace std::chrono_literals;

constexpr auto kIdleSleep = 2ms;    // without calls under way, control messages are looked for this often
constexpr auto kFarewell = 3s;      // after a failure, how long a rank waits for the others' last words
constexpr auto kMessageGrace = 1s;  // after a rank has ended, how long its last messages may take
constexpr int kLastRounds = 100;
constexpr auto kLookForDead = 100ms;  // how often the progress thread looks for ranks that are gone
constexpr auto kAnswerGrace = 5s;     // how long after a deadline the progress thread may take to say who is missing

// What must stay in memory for the messages that a failure left under way.
std::list<std::shared_ptr<MpiTicket>>& abandoned() {
  static auto* list = new std::list<std::shared_ptr<MpiTicket>>();
  return *list;
}

}  // namespace

MpiProgress::MpiProgress(const Launch& launch, Seconds start_timeout) {
  std::promise<void> is_ready;
  std::future<void> ready = is_ready.get_future();
  thread_ = std::thread([&, this] { run(launch, is_ready); });
  if (ready.wait_for(start_timeout) != std::future_status::ready) {
    fmt::print(stderr, "error: rank {}: MPI has not started within {} s: a rank of the {} is missing\n", launch.rank,
               start_timeout.count(), launch.world_size);
    std::_Exit(static_cast<int>(ExitCode::kPeer));  // the thread cannot be stopped
  }
  try {
    ready.get();
  } catch (...) {
    thread_.join();
    throw;
  }
}

MpiProgress::~MpiProgress() {
  {
    std::lock_guard lock(mutex_);
    should_stop_ = true;
    stop_at_ = Clock::now() + kMessageGrace;
  }
  bell_->ring();
  thread_.join();
}

void MpiProgress::submit(const std::shared_ptr<MpiTicket>& ticket) {
  std::lock_guard lock(mutex_);
  if (failed_rank_ >= 0) {
    ticket->error = fmt::format("{}: rank {} failed: {}", ticket->description, failed_rank_.load(), failure_);
    return;
  }
  queue_.push_back(ticket);
  bell_->ring();
}

bool MpiProgress::has_ended(const MpiTicket& ticket) const {
  std::lock_guard lock(mutex_);
  return ticket.is_done || !ticket.error.empty();
}

at::Tensor MpiProgress::wait(MpiTicket& ticket, Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  const auto has_ended = [&] { return ticket.is_done || !ticket.error.empty(); };
  if (!changed_.wait_until(lock, deadline, has_ended)) {
    ticket.has_expired = true;
    bell_->ring();
    changed_.wait_for(lock, kAnswerGrace, has_ended);
  }
  if (ticket.is_done) return std::move(ticket.result);
  if (!ticket.error.empty()) throw PeerError("{}", ticket.error);
  throw PeerError("{}: nothing within {} s, and MPI itself does not answer", ticket.description, ticket.timeout);
}

void MpiProgress::fail(const Failure& failure) {
  std::lock_guard lock(mutex_);
  if (failed_rank_ >= 0) return;
  failed_rank_ = rank_;
  failure_ = failure.message;
  cause_ = failure.code;
  notices_.emplace_back(Notice::kFailed, failure.message);
  bell_->ring();
}

std::string MpiProgress::failure_text() const {
  std::lock_guard lock(mutex_);
  return fmt::format("rank {} failed: {}", failed_rank_.load(), failure_);
}

void MpiProgress::add(const std::shared_ptr<WindowQueue>& queue) {
  std::lock_guard lock(mutex_);
  new_windows_.push_back(queue);
}

Failure MpiProgress::leave(Seconds limit) {
  std::unique_lock lock(mutex_);
  notices_.emplace_back(Notice::kLeaving, "");
  bell_->ring();
  const auto all_left = [&] { return left_count_ == size_ - 1; };
  const bool is_well = failed_rank_ < 0 && changed_.wait_for(lock, limit, [&] { return all_left() || failed_rank_ >= 0; });
  if (is_well && failed_rank_ < 0) {
    should_finalize_ = true;
    return {ExitCode::kFinished, ""};
  }
  if (failed_rank_ >= 0) {
    changed_.wait_for(lock, kFarewell, all_left);
    return {ExitCode::kPeer, fmt::format("rank {} failed: {}", failed_rank_.load(), failure_)};
  }
  std::string late;
  for (int rank = 0; rank < size_; ++rank) {
    if (rank != rank_ && left_at_[rank] == Clock::time_point()) late += fmt::format(" {}", rank);
  }
  return {ExitCode::kPeer, fmt::format("these ranks have not ended within {} s after this one:{}", limit.count(), late)};
}

void MpiProgress::run(const Launch& launch, std::promise<void>& is_ready) {
  pthread_setname_np(pthread_self(), "mpi progress");
  at::set_num_threads(1);
  at::GradMode::set_enabled(false);
  try {
    start_mpi(launch);
  } catch (...) {
    is_ready.set_exception(std::current_exception());
    return;
  }
  is_ready.set_value();
  loop();
}

void MpiProgress::start_mpi(const Launch& launch) {
  int provided = 0, is_set = 0, *tag_limit = nullptr;
  check_mpi(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
  HP_CHECK(provided >= MPI_THREAD_FUNNELED, "this MPI has no MPI_THREAD_FUNNELED");
  MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
  MPI_Comm_size(MPI_COMM_WORLD, &size_);
  if (!launch.launcher.empty() && (launch.rank != rank_ || launch.world_size != size_)) {
    MPI_Finalize();
    throw ConfigError(
        "{} started this process as rank {} of {}, but MPI sees rank {} of {}: start it by mpirun of the same MPI, or by "
        "srun --mpi=pmix",
        launch.launcher, launch.rank, launch.world_size, rank_, size_);
  }
  for (MPI_Comm* communicator : {&control_, &critical_, &bulk_}) {
    check_mpi(MPI_Comm_dup(MPI_COMM_WORLD, communicator), "MPI_Comm_dup");
    check_mpi(MPI_Comm_set_errhandler(*communicator, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  }
  check_mpi(MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_TAG_UB, &tag_limit, &is_set), "MPI_Comm_get_attr");
  while (is_set && tag_bits_ < 31 && (int64_t{2} << tag_bits_) - 1 <= *tag_limit) ++tag_bits_;
  HP_CHECK(tag_bits_ >= 16, "this MPI has tags of {} bits only", tag_bits_);
  left_at_.resize(size_);
  post_control_receive();
  share_memory();
}

void MpiProgress::share_memory() {
  MPI_Comm local = MPI_COMM_NULL;
  check_mpi(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &local), "MPI_Comm_split_type");
  MPI_Comm_size(local, &local_size_);
  int local_rank = 0;
  MPI_Comm_rank(local, &local_rank);
  const cpu_set_t mine = allowed_hardware_threads();
  std::vector<cpu_set_t> allowed(local_size_);
  check_mpi(MPI_Allgather(&mine, sizeof(mine), MPI_BYTE, allowed.data(), sizeof(mine), MPI_BYTE, local), "MPI_Allgather");
  hardware_threads_ = share_of_hardware_threads(allowed, local_rank);
  host_ = HostMemory::share(MPI_COMM_WORLD, local);
  MPI_Comm_free(&local);
  std::vector<LastCall*> last_calls(size_, nullptr);
  for (int rank = 0; rank < size_ && host_; ++rank) {
    if (host_->has(rank)) last_calls[rank] = &host_->last_call(rank);
  }
  if (host_) bell_ = &host_->bell(rank_);
  board_ = std::make_unique<Board>(rank_, std::move(last_calls));
}

void MpiProgress::loop() {
  int idle_rounds = 0;
  bool is_listening = false;
  while (true) {
    // Other ranks' news matter only while there are windows to look at (bell.h, NOTE [No wake-up is lost]).
    const bool has_windows =
        std::any_of(windows_.begin(), windows_.end(), [](const auto& queue) { return queue->needs_background(); });
    if (has_windows != is_listening) has_windows ? bell_->listen() : bell_->stop_listening();
    is_listening = has_windows;
    const uint32_t seen = bell_->rings();
    bool has_moved = take_commands();
    try {
      has_moved |= poll_control();
      has_moved |= advance_all();
      has_moved |= advance_windows();
      check_waits();
    } catch (const std::exception&) {
      fail_world(rank_, current_failure().message, nullptr);
    }
    {
      std::lock_guard lock(mutex_);
      if (should_stop_ && ((notices_.empty() && control_sends_.empty()) || Clock::now() > stop_at_)) break;
    }
    if (has_moved) {
      idle_rounds = 0;
    } else if (active_.empty()) {
      bell_->sleep(seen, kIdleSleep);
    } else if (++idle_rounds < 100) {
      std::this_thread::yield();
    } else {
      bell_->sleep(seen, idle_rounds < 1000 ? 20us : 100us);
    }
  }
  if (is_listening) bell_->stop_listening();
  stop_mpi();
}

// Posts what was submitted.
bool MpiProgress::take_commands() {
  std::deque<std::shared_ptr<MpiTicket>> tickets;
  std::deque<std::pair<Notice, std::string>> notices;
  int failed_rank;
  std::string failure;
  {
    std::lock_guard lock(mutex_);
    tickets.swap(queue_);
    notices.swap(notices_);
    for (auto& queue : new_windows_) windows_.insert(queue->lane() == Lane::kBulk ? windows_.end() : windows_.begin(), queue);
    new_windows_.clear();
    failed_rank = failed_rank_;
    failure = failure_;
  }
  active_.insert(active_.end(), tickets.begin(), tickets.end());
  if (failed_rank >= 0) {
    fail_world(failed_rank, failure, nullptr);
  } else {
    for (const auto& ticket : tickets) {
      try {
        ticket->exchange->post(ticket->exchange->lane() == Lane::kBulk ? bulk_ : critical_, tag_bits_);
      } catch (const std::exception&) {
        fail_world(rank_, fmt::format("{}: {}", ticket->description, current_failure().message), ticket.get());
      }
    }
  }
  for (const auto& [notice, text] : notices) tell_all(notice, text);
  return !tickets.empty() || !notices.empty();
}

// Critical calls first.
bool MpiProgress::advance_all() {
  bool has_moved = false;
  for (const Lane lane : {Lane::kCritical, Lane::kBulk}) {
    for (auto place = active_.begin(); place != active_.end();) {
      const std::shared_ptr<MpiTicket> ticket = *place;
      if (ticket->exchange->lane() != lane) {
        ++place;
        continue;
      }
      try {
        has_moved |= ticket->exchange->advance();
      } catch (const std::exception&) {
        const std::string message = current_failure().message;
        const bool names_call = message.starts_with(ticket->description);
        fail_world(rank_, names_call ? message : fmt::format("{}: {}", ticket->description, message), ticket.get());
        return true;
      }
      if (!ticket->exchange->is_complete()) {
        ++place;
        continue;
      }
      finish(*ticket);
      place = active_.erase(place);
    }
  }
  return has_moved;
}

// A round of each; critical calls as long as they move.
bool MpiProgress::advance_windows() {
  bool has_moved = false;
  for (const auto& queue : windows_) {
    if (!queue->needs_background()) continue;
    while (queue->advance_in_background()) {
      has_moved = true;
      if (queue->lane() == Lane::kBulk) break;
    }
  }
  return has_moved;
}

void MpiProgress::finish(MpiTicket& ticket) {
  for (auto& [world_rank, call] : ticket.exchange->heard()) board_->hear(world_rank, ticket.group_name, call);
  at::Tensor result = ticket.exchange->take_result();
  ticket.exchange.reset();
  std::lock_guard lock(mutex_);
  ticket.result = std::move(result);
  ticket.is_done = true;
  changed_.notify_all();
}

// Calls whose deadline has passed, or whose peers are gone.
void MpiProgress::check_waits() {
  const bool may_look = Clock::now() >= next_look_;
  if (may_look) next_look_ = Clock::now() + kLookForDead;
  for (const auto& ticket : active_) {
    bool has_expired;
    {
      std::lock_guard lock(mutex_);
      has_expired = ticket->has_expired;
    }
    if (!has_expired && !may_look) continue;
    const std::vector<int> absent = ticket->exchange->absent(), unfinished = ticket->exchange->unfinished();
    std::string reason = gone_text(absent);
    if (reason.empty() && has_expired) reason = missing_text(absent, unfinished, ticket->timeout);
    if (reason.empty()) continue;
    fail_world(rank_, fmt::format("{}: {}", ticket->description, reason), ticket.get());
    return;
  }
}

std::string MpiProgress::gone_text(const std::vector<int>& world_ranks) const {
  for (int rank : world_ranks) {
    bool has_left;
    {
      std::lock_guard lock(mutex_);
      has_left = left_at_[rank] != Clock::time_point() && Clock::now() - left_at_[rank] > kMessageGrace;
    }
    if (has_left) return fmt::format("rank {} has ended without calling it{}", rank, board_->last_call_text(rank));
    if (host_ && host_->has(rank) && host_->is_dead(rank)) {
      return fmt::format("rank {} is dead{}", rank, board_->last_call_text(rank));
    }
  }
  return "";
}

std::string MpiProgress::missing_text(const std::vector<int>& absent, const std::vector<int>& unfinished, double timeout) const {
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  for (int rank : absent) {
    add(fmt::format("rank {} has not called it within {} s{}", rank, timeout, board_->last_call_text(rank)));
  }
  if (!absent.empty()) return text;
  for (int rank : unfinished) add(fmt::format("rank {} has called it, but its rows are not here within {} s", rank, timeout));
  return text;
}

// Ends all calls under way. `culprit` gets the message itself, all others hear of it.
void MpiProgress::fail_world(int rank, const std::string& message, const MpiTicket* culprit) {
  std::lock_guard lock(mutex_);
  if (failed_rank_ < 0) {
    failed_rank_ = rank;
    failure_ = message;
    if (rank == rank_) notices_.emplace_back(Notice::kFailed, message);
  }
  for (const auto& ticket : active_) {
    ticket->error = ticket.get() == culprit
                        ? message
                        : fmt::format("{}: rank {} failed: {}", ticket->description, failed_rank_.load(), failure_);
  }
  abandoned().splice(abandoned().end(), active_);
  changed_.notify_all();
  bell_->ring();
}

void MpiProgress::post_control_receive() {
  check_mpi(MPI_Irecv(&incoming_, sizeof(Control), MPI_BYTE, MPI_ANY_SOURCE, 0, control_, &control_receive_), "MPI_Irecv");
}

void MpiProgress::tell_all(Notice notice, const std::string& text) {
  control_sends_.emplace_back();
  auto& [message, requests] = control_sends_.back();
  message = Control{.notice = notice, .rank = rank_, .code = static_cast<int32_t>(cause_), .text = {}};
  text.copy(message.text, sizeof(message.text) - 1);
  for (int rank = 0; rank < size_; ++rank) {
    if (rank == rank_) continue;
    MPI_Request request = MPI_REQUEST_NULL;
    // A peer that is gone already cannot be told; the others still are.
    if (MPI_Isend(&message, sizeof(Control), MPI_BYTE, rank, 0, control_, &request) == MPI_SUCCESS) requests.push_back(request);
  }
}

bool MpiProgress::poll_control() {
  for (auto send = control_sends_.begin(); send != control_sends_.end();) {
    int are_done = 0;
    const int code = MPI_Testall(static_cast<int>(send->second.size()), send->second.data(), &are_done, MPI_STATUSES_IGNORE);
    send = are_done || code != MPI_SUCCESS ? control_sends_.erase(send) : std::next(send);
  }
  int is_here = 0;
  check_mpi(MPI_Test(&control_receive_, &is_here, MPI_STATUS_IGNORE), "MPI_Test");
  if (!is_here) return false;
  const Control message = incoming_;
  post_control_receive();
  if (message.notice == Notice::kFailed) {
    // What arrived before the failure still counts: the notice may have overtaken it.
    for (int round = 0; round < kLastRounds && advance_all(); ++round) {
    }
    {
      std::lock_guard lock(mutex_);
      if (failed_rank_ < 0) cause_ = static_cast<ExitCode>(message.code);
    }
    fail_world(message.rank, message.text, nullptr);
  } else {
    std::lock_guard lock(mutex_);
    left_at_[message.rank] = Clock::now();
    ++left_count_;
    changed_.notify_all();
  }
  return true;
}

void MpiProgress::stop_mpi() {
  if (!should_finalize_) return;
  MPI_Cancel(&control_receive_);
  MPI_Wait(&control_receive_, MPI_STATUS_IGNORE);
  MPI_Finalize();
}

}  // namespace hyperparallel::dist
