// A group of ranks that exchange tensors: one axis of the mesh. Every exchange of the program names its group.
//
//   Pending kv = cp.all_gather(local, rows, "layer3.kv");   // returns at once
//   ... work that does not need it ...
//   at::Tensor all = kv.wait();                             // [sum of rows, ...], the same bits on every rank
//
// Calls are collective: every rank of the group makes the same calls on it in the same order with the same label, from one
// thread at a time. Results may be awaited in any order. An input must not change before `wait` has returned. Tensors are on the
// CPU, of any type and any strides; sizes may be zero; results carry no autograd graph. In a group of one, which is a group like
// any other, a result may share memory with its input.
//
// Sums are added in rank order, in FP32 for BF16 and FP16 (rounded once at the end) and otherwise in the tensor's own type: the
// same bits on every rank, in every run and with every communicator.
//
// Errors: a call that breaks a rule on one rank alone is an InternalError there. PeerError comes from any call or `wait` when
// ranks called different things, when a rank did not come within the group's timeout, or when another rank failed; it names this
// rank, the group, the operation, its label, number and shape, and who is missing or what the others called.
#pragma once

#include "base/aten.h"

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "dist/call.h"

namespace hyperparallel::dist {

using Seconds = std::chrono::duration<double>;

// Until when a call is waited for: set when somebody first does.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;
  explicit Deadline(Seconds timeout) : timeout_(timeout) {}
  Clock::time_point get() {
    if (!time_) time_ = Clock::now() + std::chrono::duration_cast<Clock::duration>(timeout_);
    return *time_;
  }
  bool has_passed() { return Clock::now() >= get(); }

 private:
  Seconds timeout_;
  std::optional<Clock::time_point> time_;
};

// A started exchange. Its group must live until the end of `wait`.
class Pending {
 public:
  // `finish` waits, `is_ready` does not; without it, `finish` does not either.
  explicit Pending(std::function<at::Tensor()> finish, std::function<bool()> is_ready = {})
      : finish_(std::move(finish)), is_ready_(std::move(is_ready)) {}

  // Blocks until the result is there and returns it. Call it once, from one thread at a time with all calls of the group.
  at::Tensor wait();
  // Whether `wait` would return, or throw, at once. The timeout counts from the first call of it.
  bool is_ready() const { return !is_ready_ || is_ready_(); }

 private:
  std::function<at::Tensor()> finish_;
  std::function<bool()> is_ready_;
};

// Which traffic a group carries. Bulk transfers (weights, gradients) give way to critical ones (activations, counts, losses).
enum class Lane { kCritical, kBulk };

struct GroupOptions {
  std::string name;          // the mesh axis, as in messages: "tp"
  std::vector<int> members;  // world ranks; their order gives the ranks in the group
  Lane lane = Lane::kCritical;
  Seconds timeout = Seconds(600);  // how long a `wait` waits for others
};

// For messages: rank 3, group "tp" (ranks 2 3): all_gather "layer3.kv" #12, Float [3, 4]. `rank` is that in the group.
std::string describe(const GroupOptions& options, int rank, const CallHeader& header);

class Group {
 public:
  virtual ~Group() = default;
  Group(const Group&) = delete;
  Group& operator=(const Group&) = delete;

  const std::string& name() const { return options_.name; }
  const std::vector<int>& members() const { return options_.members; }
  int size() const { return static_cast<int>(options_.members.size()); }
  int rank() const { return rank_; }  // in the group

  // Concatenates along dimension 0 in rank order; `rows[r]` is rank r's size there, the same list on every rank.
  Pending all_gather(const at::Tensor& local, const std::vector<int64_t>& rows, const std::string& label);
  // The sum over ranks of tensors [sum of rows, ...]; rank r gets its `rows[r]` rows. The transpose of all_gather.
  Pending reduce_scatter(const at::Tensor& full, const std::vector<int64_t>& rows, const std::string& label);
  // The sum (or maximum; NaN wins) over ranks, on every rank.
  Pending all_reduce(const at::Tensor& local, const std::string& label, Reduction reduction = Reduction::kSum);
  // Sends `send_rows[r]` consecutive rows to rank r; returns the rows received, in rank order: `receive_rows[r]` from rank r.
  // Its transpose swaps the two counts.
  Pending all_to_all(const at::Tensor& rows, const std::vector<int64_t>& send_rows, const std::vector<int64_t>& receive_rows,
                     const std::string& label);
  // The root's tensor, on every rank. The others pass one of the same shape and type, whose values do not matter.
  Pending broadcast(const at::Tensor& tensor, int root, const std::string& label);

  // From one rank to another, each with its own order of calls. `wait` of a send returns when the input may change again, which
  // may be as late as the other rank's `receive`: start both directions before waiting for either.
  Pending send(const at::Tensor& tensor, int to, const std::string& label);
  Pending receive(at::IntArrayRef shape, at::ScalarType type, int from, const std::string& label);

  // These block. All ranks have called:
  void barrier(const std::string& label);
  // Everybody's counts, [rank][i]; every rank passes the same number of them.
  std::vector<std::vector<int64_t>> gather_counts(const std::vector<int64_t>& mine, const std::string& label);
  // `counts[r]` goes to rank r; returns what came, by rank: the receive_rows that belong to send_rows.
  std::vector<int64_t> exchange_counts(const std::vector<int64_t>& counts, const std::string& label);

 protected:
  Group(GroupOptions options, int world_rank);
  const GroupOptions& options() const { return options_; }
  // Starts a numbered call.
  virtual Pending start(Call call) = 0;
  // Calls with one channel are numbered together: all collectives of the group; what one rank sends to another.
  int channel(const Call& call) const;
  std::string describe_here(const CallHeader& header) const { return describe(options_, rank_, header); }

 private:
  Call make_call(Operation operation, const at::Tensor& input, const std::string& label) const;
  Pending launch(Call call);

  GroupOptions options_;
  int rank_;
  std::map<int, int64_t> sequence_;  // number of the last call, by channel
};

// A group of this rank alone, which needs no communicator.
std::shared_ptr<Group> self_group(const std::string& name = "self");

}  // namespace hyperparallel::dist
