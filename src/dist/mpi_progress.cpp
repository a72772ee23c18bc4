#include "dist/mpi_progress.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <pthread.h>

#include <algorithm>
#include <cstdlib>

#include "base/error.h"

namespace hyperparallel::dist {
namespace {

using namespace std::chrono_literals;

constexpr auto kIdleSleep = 2ms;    // without calls under way, control messages are looked for this often
constexpr auto kFarewell = 3s;      // after a failure, how long a rank waits for the others' last words
constexpr auto kMessageGrace = 1s;  // after a rank has ended, how long its last messages may take
constexpr int kLastRounds = 100;
constexpr auto kAnswerGrace = 5s;  // how long after a deadline the progress thread may take to say who is missing

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
  submitted_.notify_all();
  thread_.join();
}

void MpiProgress::submit(const std::shared_ptr<MpiTicket>& ticket) {
  std::lock_guard lock(mutex_);
  if (failed_rank_ >= 0) {
    ticket->error = fmt::format("{}: rank {} failed: {}", ticket->description, failed_rank_, failure_);
    return;
  }
  queue_.push_back(ticket);
  submitted_.notify_all();
}

at::Tensor MpiProgress::wait(MpiTicket& ticket, Seconds timeout) {
  std::unique_lock lock(mutex_);
  const auto has_ended = [&] { return ticket.is_done || !ticket.error.empty(); };
  if (!changed_.wait_for(lock, timeout, has_ended)) {
    ticket.has_expired = true;
    submitted_.notify_all();
    changed_.wait_for(lock, kAnswerGrace, has_ended);
  }
  if (ticket.is_done) return std::move(ticket.result);
  if (!ticket.error.empty()) throw PeerError("{}", ticket.error);
  throw PeerError("{}: nothing within {} s, and MPI itself does not answer", ticket.description, timeout.count());
}

void MpiProgress::fail(const Failure& failure) {
  std::unique_lock lock(mutex_);
  if (failed_rank_ >= 0) return;
  failed_rank_ = rank_;
  failure_ = failure.message;
  notices_.emplace_back(Notice::kFailed, failure.message);
  submitted_.notify_all();
}

Failure MpiProgress::leave(Seconds limit) {
  std::unique_lock lock(mutex_);
  notices_.emplace_back(Notice::kLeaving, "");
  submitted_.notify_all();
  const auto all_left = [&] { return left_count_ == size_ - 1; };
  const bool is_well = failed_rank_ < 0 && changed_.wait_for(lock, limit, [&] { return all_left() || failed_rank_ >= 0; });
  if (is_well && failed_rank_ < 0) {
    should_finalize_ = true;
    return {ExitCode::kFinished, ""};
  }
  if (failed_rank_ >= 0) {
    changed_.wait_for(lock, kFarewell, all_left);
    return {ExitCode::kPeer, fmt::format("rank {} failed: {}", failed_rank_, failure_)};
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
}

void MpiProgress::loop() {
  int idle_rounds = 0;
  while (true) {
    bool has_moved = take_commands();
    try {
      has_moved |= poll_control();
      has_moved |= advance_all();
      check_waits();
    } catch (const std::exception&) {
      fail_world(rank_, current_failure().message, nullptr);
    }
    std::unique_lock lock(mutex_);
    if (should_stop_ && ((notices_.empty() && control_sends_.empty()) || Clock::now() > stop_at_)) break;
    if (has_moved || !queue_.empty() || !notices_.empty()) {
      idle_rounds = 0;
    } else if (active_.empty()) {
      submitted_.wait_for(lock, kIdleSleep);
    } else if (++idle_rounds < 100) {
      lock.unlock();
      std::this_thread::yield();
    } else {
      submitted_.wait_for(lock, idle_rounds < 1000 ? 20us : 100us);
    }
  }
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

void MpiProgress::finish(MpiTicket& ticket) {
  for (auto& [world_rank, call] : ticket.exchange->heard()) last_calls_[{ticket.group_name, world_rank}] = call;
  at::Tensor result = ticket.exchange->take_result();
  ticket.exchange.reset();
  std::lock_guard lock(mutex_);
  ticket.result = std::move(result);
  ticket.is_done = true;
  changed_.notify_all();
}

// Calls whose deadline has passed, or whose peers have ended.
void MpiProgress::check_waits() {
  for (const auto& ticket : active_) {
    bool has_expired;
    int gone = -1;
    {
      std::lock_guard lock(mutex_);
      has_expired = ticket->has_expired;
      if (left_count_ > 0) {
        for (int rank : ticket->exchange->absent()) {
          if (left_at_[rank] != Clock::time_point() && Clock::now() - left_at_[rank] > kMessageGrace) gone = rank;
        }
      }
    }
    if (!has_expired && gone < 0) continue;
    const std::string reason =
        has_expired ? missing_text(*ticket)
                    : fmt::format("rank {} has ended without calling it{}", gone, last_call_text(ticket->group_name, gone));
    fail_world(rank_, fmt::format("{}: {}", ticket->description, reason), ticket.get());
    return;
  }
}

std::string MpiProgress::missing_text(const MpiTicket& ticket) const {
  std::string text;
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  for (int rank : ticket.exchange->absent()) {
    add(fmt::format("rank {} has not called it within {} s{}", rank, ticket.timeout, last_call_text(ticket.group_name, rank)));
  }
  for (int rank : ticket.exchange->unfinished()) {
    if (ticket.exchange->absent().empty())
      add(fmt::format("rank {} has called it, but its rows are not here within {} s", rank, ticket.timeout));
  }
  return text;
}

std::string MpiProgress::last_call_text(const std::string& group_name, int world_rank) const {
  const auto found = last_calls_.find({group_name, world_rank});
  return found == last_calls_.end() ? "; it has called nothing in this group"
                                    : "; its last call in this group is " + describe(found->second);
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
    ticket->error =
        ticket.get() == culprit ? message : fmt::format("{}: rank {} failed: {}", ticket->description, failed_rank_, failure_);
  }
  abandoned().splice(abandoned().end(), active_);
  changed_.notify_all();
}

void MpiProgress::post_control_receive() {
  check_mpi(MPI_Irecv(&incoming_, sizeof(Control), MPI_BYTE, MPI_ANY_SOURCE, 0, control_, &control_receive_), "MPI_Irecv");
}

void MpiProgress::tell_all(Notice notice, const std::string& text) {
  control_sends_.emplace_back();
  auto& [message, requests] = control_sends_.back();
  message = Control{.notice = notice, .rank = rank_, .text = {}};
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
