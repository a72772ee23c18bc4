#include "dist/thread_comm.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <pthread.h>

#include <condition_variable>
#include <mutex>
#include <optional>
#include <set>
#include <thread>

#include "dist/failure.h"
#include "dist/hardware_threads.h"

namespace hyperparallel::dist {
namespace {

// One call of all its participants: the whole group, or the two ends of a send and receive.
struct Meeting {
  std::vector<int> participants;           // ranks in the group
  std::vector<std::optional<Call>> calls;  // by rank in the group
  std::vector<CallHeader> headers;         // of those that came, for messages
  std::vector<bool> came;
  std::vector<at::Tensor> results;
  int arrived = 0, left = 0;
  bool is_done = false;
  bool is_refused = false;  // the calls do not fit
  std::string refusal;      // what does not
};

using MeetingKey = std::pair<int, int64_t>;  // (channel, sequence number)

struct GroupState {
  std::condition_variable changed;
  std::map<MeetingKey, std::shared_ptr<Meeting>> meetings;
};

// What all ranks share. One mutex guards everything in it.
struct Shared {
  explicit Shared(int world_size) : has_returned(world_size, false), last_call(world_size) {}

  std::mutex mutex;
  std::map<std::pair<std::string, std::vector<int>>, std::shared_ptr<GroupState>> groups;
  std::vector<bool> has_returned;      // by world rank
  std::vector<std::string> last_call;  // by world rank, for messages
  int failed_rank = -1;
  std::string failure;
  ExitCode failure_code = ExitCode::kBug;

  void notify_all() {
    for (auto& [key, group] : groups) group->changed.notify_all();
  }
  // The first failure counts.
  void fail(int rank, ExitCode code, const std::string& message) {
    if (failed_rank >= 0) return;
    failed_rank = rank;
    failure_code = code;
    failure = message;
    notify_all();
  }
};

class ThreadGroup final : public Group {
 public:
  ThreadGroup(GroupOptions options, int world_rank, std::shared_ptr<Shared> shared, std::shared_ptr<GroupState> state)
      : Group(std::move(options), world_rank), shared_(std::move(shared)), state_(std::move(state)) {}

 protected:
  Pending start(Call call) override {
    const MeetingKey key{channel(call), call.sequence};
    const CallHeader header = header_for(call, rank());
    std::unique_lock lock(shared_->mutex);
    std::shared_ptr<Meeting>& place = state_->meetings[key];
    if (!place) place = open_meeting(call);
    const std::shared_ptr<Meeting> meeting = place;
    // Who comes to a refused meeting still hears what does not fit.
    if (shared_->failed_rank >= 0 && !meeting->is_refused) throw_failure(header);
    join(*meeting, std::move(call), header);
    if (!meeting->is_refused && meeting->arrived == static_cast<int>(meeting->participants.size())) {
      std::vector<std::optional<Call>> calls = std::move(meeting->calls);
      lock.unlock();
      std::vector<at::Tensor> results = carry_out(*meeting, calls);
      calls.clear();  // before the others see the end: they may then free what they sent
      lock.lock();
      meeting->results = std::move(results);
      meeting->is_done = true;
      state_->changed.notify_all();
    }
    const auto deadline = std::make_shared<Deadline>(options().timeout);
    return Pending([this, key, meeting, header, deadline] { return wait(key, *meeting, header, deadline->get()); },
                   [this, meeting, deadline] { return has_ended(*meeting, *deadline); });
  }

 private:
  std::shared_ptr<Meeting> open_meeting(const Call& call) const {
    auto meeting = std::make_shared<Meeting>();
    meeting->calls.resize(size());
    meeting->headers.resize(size());
    meeting->came.resize(size(), false);
    meeting->results.resize(size());
    if (call.point_to_point()) {
      meeting->participants = {rank(), call.peer};
    } else {
      for (int member = 0; member < size(); ++member) meeting->participants.push_back(member);
    }
    return meeting;
  }

  // Compares with those that came before.
  void join(Meeting& meeting, Call call, const CallHeader& header) {
    meeting.headers[rank()] = header;
    meeting.came[rank()] = true;
    ++meeting.arrived;
    shared_->last_call[members()[rank()]] = fmt::format("{} in group \"{}\"", hyperparallel::dist::describe(header), name());
    for (int other : meeting.participants) {
      if (meeting.is_refused || other == rank() || !meeting.came[other]) continue;
      const std::string difference = mismatch(header_for(call, other), header_for(*meeting.calls[other], rank()));
      if (difference.empty()) continue;
      meeting.is_refused = true;
      meeting.refusal = difference;
      shared_->fail(members()[rank()], ExitCode::kPeer, refusal_text(meeting, header));
    }
    meeting.calls[rank()] = std::move(call);
  }

  std::vector<at::Tensor> carry_out(const Meeting& meeting, const std::vector<std::optional<Call>>& calls) const {
    std::vector<at::Tensor> results(size());
    for (int receiver : meeting.participants) {
      const Call& call = *calls[receiver];
      if (call.operation == Operation::kSend) {
        results[receiver] = call.input;
        continue;
      }
      if (call.operation == Operation::kAllReduce && receiver > 0) {
        results[receiver] = results[0].clone();
        continue;
      }
      std::vector<at::Tensor> parts;
      for (int sender : meeting.participants) {
        if (call.operation != Operation::kReceive || sender != receiver) parts.push_back(part_for(*calls[sender], receiver));
      }
      // A single part is the sender's own memory.
      results[receiver] = parts.size() == 1 && size() > 1 ? parts[0].clone().view(call.result_shape) : combine(call, parts);
    }
    return results;
  }

  // Whether `wait` returns or throws at once.
  bool has_ended(const Meeting& meeting, Deadline& deadline) const {
    std::lock_guard lock(shared_->mutex);
    if (meeting.is_done || meeting.is_refused || shared_->failed_rank >= 0) return true;
    if (meeting.arrived == static_cast<int>(meeting.participants.size())) return false;  // it is carried out
    return first_gone(meeting) >= 0 || deadline.has_passed();
  }

  at::Tensor wait(const MeetingKey& key, Meeting& meeting, const CallHeader& header, Deadline::Clock::time_point deadline) {
    std::unique_lock lock(shared_->mutex);
    while (!meeting.is_done) {
      if (meeting.is_refused) throw PeerError("{}", refusal_text(meeting, header));
      if (shared_->failed_rank >= 0) throw_failure(header);
      const bool is_carried_out = meeting.arrived == static_cast<int>(meeting.participants.size());
      if (!is_carried_out) {
        if (const int gone = first_gone(meeting); gone >= 0) {
          fail(header, fmt::format("rank {} has ended without calling it{}", members()[gone], last_call_text(gone)));
        }
        if (std::chrono::steady_clock::now() >= deadline) fail(header, missing_text(meeting));
      }
      if (is_carried_out) {
        state_->changed.wait(lock);
      } else {
        state_->changed.wait_until(lock, deadline);
      }
    }
    at::Tensor result = std::move(meeting.results[rank()]);
    if (++meeting.left == static_cast<int>(meeting.participants.size())) state_->meetings.erase(key);
    return result;
  }

  [[noreturn]] void fail(const CallHeader& header, const std::string& reason) {
    const std::string message = fmt::format("{}: {}", describe_here(header), reason);
    shared_->fail(members()[rank()], ExitCode::kPeer, message);
    throw PeerError("{}", message);
  }

  [[noreturn]] void throw_failure(const CallHeader& header) const {
    throw PeerError("{}: rank {} failed: {}", describe_here(header), shared_->failed_rank, shared_->failure);
  }

  int first_gone(const Meeting& meeting) const {
    for (int member : meeting.participants) {
      if (!meeting.came[member] && shared_->has_returned[members()[member]]) return member;
    }
    return -1;
  }

  std::string last_call_text(int member) const {
    const std::string& call = shared_->last_call[members()[member]];
    return call.empty() ? "; it has called nothing yet" : "; its last call is " + call;
  }

  std::string missing_text(const Meeting& meeting) const {
    std::string text;
    for (int member : meeting.participants) {
      if (meeting.came[member]) continue;
      text += fmt::format("{}rank {} has not called it within {} s{}", text.empty() ? "" : ", ", members()[member],
                          options().timeout.count(), last_call_text(member));
    }
    return text;
  }

  std::string refusal_text(const Meeting& meeting, const CallHeader& header) const {
    std::string text = fmt::format("{}: the calls do not fit ({})", describe_here(header), meeting.refusal);
    for (int member : meeting.participants) {
      if (member == rank()) continue;
      text += meeting.came[member]
                  ? fmt::format("; rank {} called {}", members()[member], hyperparallel::dist::describe(meeting.headers[member]))
                  : fmt::format("; rank {} has not called yet", members()[member]);
    }
    return text;
  }

  std::shared_ptr<Shared> shared_;
  std::shared_ptr<GroupState> state_;
};

class ThreadWorld final : public World {
 public:
  ThreadWorld(int rank, int size, std::shared_ptr<Shared> shared) : rank_(rank), size_(size), shared_(std::move(shared)) {}
  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int local_size() const override { return size_; }
  int hardware_threads() const override {
    return share_of_hardware_threads(std::vector(size_, allowed_hardware_threads()), rank_);
  }

  std::shared_ptr<Group> make_group(const GroupOptions& options) override {
    HP_CHECK(names_.insert(options.name).second, "group \"{}\" is made twice", options.name);
    std::lock_guard lock(shared_->mutex);
    std::shared_ptr<GroupState>& state = shared_->groups[{options.name, options.members}];
    if (!state) state = std::make_shared<GroupState>();
    return std::make_shared<ThreadGroup>(options, rank_, shared_, state);
  }

  void abort(const std::string& reason) override { fail(ExitCode::kBug, reason); }

  void fail(ExitCode code, const std::string& reason) {
    std::lock_guard lock(shared_->mutex);
    shared_->fail(rank_, code, reason);
  }

 private:
  int rank_, size_;
  std::shared_ptr<Shared> shared_;
  std::set<std::string> names_;
};

void run_rank(int rank, int size, const RankOptions& options, bool grad_mode, const std::shared_ptr<Shared>& shared,
              const std::function<void(World&)>& body) {
  pthread_setname_np(pthread_self(), fmt::format("rank {}", rank).c_str());
  at::set_num_threads(options.threads);
  at::GradMode::set_enabled(grad_mode);
  ThreadWorld world(rank, size, shared);
  try {
    body(world);
  } catch (...) {
    const Failure failure = current_failure();
    world.fail(failure.code, failure.message);
  }
  std::lock_guard lock(shared->mutex);
  shared->has_returned[rank] = true;
  shared->notify_all();
}

}  // namespace

RankError::RankError(int rank, ExitCode code, const std::string& message) : Error(code, with_rank(rank, message)), rank_(rank) {}

void run_ranks(int world_size, const RankOptions& options, const std::function<void(World&)>& body) {
  HP_CHECK(world_size >= 1, "{} ranks", world_size);
  const auto shared = std::make_shared<Shared>(world_size);
  const bool grad_mode = at::GradMode::is_enabled();
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back(run_rank, rank, world_size, options, grad_mode, std::cref(shared), std::cref(body));
  }
  for (std::thread& thread : threads) thread.join();
  if (shared->failed_rank >= 0) throw RankError(shared->failed_rank, shared->failure_code, shared->failure);
}

}  // namespace hyperparallel::dist
