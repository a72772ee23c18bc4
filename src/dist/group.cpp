#include "dist/group.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace hyperparallel::dist {
namespace {

int64_t total(const std::vector<int64_t>& rows) {
  return std::accumulate(rows.begin(), rows.end(), int64_t{0});
}

// The shape of `tensor` with another number of rows.
std::vector<int64_t> with_rows(const at::Tensor& tensor, int64_t rows) {
  std::vector<int64_t> shape = tensor.sizes().vec();
  shape[0] = rows;
  return shape;
}

class SelfGroup final : public Group {
 public:
  explicit SelfGroup(const std::string& name) : Group(GroupOptions{.name = name, .members = {0}}, 0) {}

 protected:
  Pending start(Call call) override {
    return Pending([call = std::move(call)] { return combine(call, {part_for(call, 0)}); });
  }
};

}  // namespace

at::Tensor Pending::wait() {
  HP_CHECK(finish_, "an exchange is awaited once");
  return std::exchange(finish_, nullptr)();
}

std::string describe(const GroupOptions& options, int rank, const CallHeader& header) {
  const std::vector<int>& members = options.members;
  return fmt::format("rank {}, group \"{}\" (rank{} {}): {}", members[rank], options.name, members.size() == 1 ? "" : "s",
                     fmt::join(members, " "), describe(header));
}

Group::Group(GroupOptions options, int world_rank) : options_(std::move(options)) {
  const std::vector<int>& members = options_.members;
  const auto self = std::find(members.begin(), members.end(), world_rank);
  HP_CHECK(self != members.end(), "rank {} makes group \"{}\" of ranks {}, to which it does not belong", world_rank, name(),
           fmt::join(members, " "));
  rank_ = static_cast<int>(self - members.begin());
}

Call Group::make_call(Operation operation, const at::Tensor& input, const std::string& label) const {
  HP_CHECK(!label.empty(), "an exchange in group \"{}\" without a label", name());
  HP_CHECK(input.defined() && input.device().is_cpu() && input.layout() == at::kStrided,
           "{}: the tensor is undefined, not on the CPU or sparse", label);
  HP_CHECK(input.dim() <= static_cast<int64_t>(std::size(CallHeader{}.shape)), "{}: {} dimensions are too many", label,
           input.dim());
  at::NoGradGuard no_grad;
  Call call;
  call.operation = operation;
  call.label = label;
  call.shape = input.sizes().vec();
  call.result_shape = call.shape;
  call.input = input.detach().contiguous();
  if (call.input.dim() == 0) call.input = call.input.view({1});
  call.send_rows.assign(size(), 0);
  call.receive_rows.assign(size(), 0);
  return call;
}

int Group::channel(const Call& call) const {
  if (!call.point_to_point()) return -1;
  return call.operation == Operation::kSend ? rank_ * size() + call.peer : call.peer * size() + rank_;
}

// Numbers and starts a call, and sees to it that nobody changed its input before the end.
Pending Group::launch(Call call) {
  call.sequence = ++sequence_[channel(call)];
  const at::Tensor input = call.input;
  const bool has_version = !input.is_inference();
  const uint32_t version = has_version ? input._version() : 0;
  const std::string label = call.label;
  at::NoGradGuard no_grad;
  const auto pending = std::make_shared<Pending>(start(std::move(call)));
  const auto finish = [=] {
    at::NoGradGuard no_grad;
    HP_CHECK(!has_version || input._version() == version, "{}: the tensor was changed in place while it was being exchanged",
             label);
    return pending->wait();
  };
  return Pending(finish, [pending] { return pending->is_ready(); });
}

Pending Group::all_gather(const at::Tensor& local, const std::vector<int64_t>& rows, const std::string& label) {
  Call call = make_call(Operation::kAllGather, local, label);
  HP_CHECK(static_cast<int>(rows.size()) == size() && local.dim() > 0 && rows[rank_] == local.size(0),
           "{}: rows [{}] do not describe {} ranks of which rank {} has a tensor [{}]", label, fmt::join(rows, ", "), size(),
           rank_, fmt::join(call.shape, ", "));
  call.same_rows_for_all = true;
  call.send_rows.assign(size(), local.size(0));
  call.receive_rows = rows;
  call.result_shape = with_rows(local, total(rows));
  return launch(std::move(call));
}

Pending Group::reduce_scatter(const at::Tensor& full, const std::vector<int64_t>& rows, const std::string& label) {
  Call call = make_call(Operation::kReduceScatter, full, label);
  HP_CHECK(static_cast<int>(rows.size()) == size() && full.dim() > 0 && total(rows) == full.size(0),
           "{}: rows [{}] do not cut a tensor [{}] for {} ranks", label, fmt::join(rows, ", "), fmt::join(call.shape, ", "),
           size());
  call.send_rows = rows;
  call.receive_rows.assign(size(), rows[rank_]);
  call.result_shape = with_rows(full, rows[rank_]);
  return launch(std::move(call));
}

Pending Group::all_reduce(const at::Tensor& local, const std::string& label, Reduction reduction) {
  Call call = make_call(Operation::kAllReduce, local, label);
  call.reduction = reduction;
  call.same_rows_for_all = true;
  call.send_rows.assign(size(), call.input.size(0));
  call.receive_rows = call.send_rows;
  return launch(std::move(call));
}

Pending Group::all_to_all(const at::Tensor& rows, const std::vector<int64_t>& send_rows, const std::vector<int64_t>& receive_rows,
                          const std::string& label) {
  Call call = make_call(Operation::kAllToAll, rows, label);
  HP_CHECK(static_cast<int>(send_rows.size()) == size() && send_rows.size() == receive_rows.size() && rows.dim() > 0 &&
               total(send_rows) == rows.size(0) && send_rows[rank_] == receive_rows[rank_],
           "{}: sending rows [{}] and receiving [{}] do not fit a tensor [{}] of rank {} of {}", label,
           fmt::join(send_rows, ", "), fmt::join(receive_rows, ", "), fmt::join(call.shape, ", "), rank_, size());
  call.send_rows = send_rows;
  call.receive_rows = receive_rows;
  call.result_shape = with_rows(rows, total(receive_rows));
  return launch(std::move(call));
}

Pending Group::broadcast(const at::Tensor& tensor, int root, const std::string& label) {
  Call call = make_call(Operation::kBroadcast, tensor, label);
  HP_CHECK(root >= 0 && root < size(), "{}: root {} of {} ranks", label, root, size());
  call.peer = root;
  call.same_rows_for_all = true;
  if (rank_ == root) call.send_rows.assign(size(), call.input.size(0));
  call.receive_rows[root] = call.input.size(0);
  return launch(std::move(call));
}

Pending Group::send(const at::Tensor& tensor, int to, const std::string& label) {
  Call call = make_call(Operation::kSend, tensor, label);
  HP_CHECK(to >= 0 && to < size() && to != rank_, "{}: rank {} of {} sends to rank {}", label, rank_, size(), to);
  call.peer = to;
  call.send_rows[to] = call.input.size(0);
  return launch(std::move(call));
}

Pending Group::receive(at::IntArrayRef shape, at::ScalarType type, int from, const std::string& label) {
  Call call = make_call(Operation::kReceive, at::empty({0}, type), label);
  HP_CHECK(from >= 0 && from < size() && from != rank_, "{}: rank {} of {} receives from rank {}", label, rank_, size(), from);
  call.peer = from;
  call.shape = call.result_shape = shape.vec();
  call.receive_rows[from] = shape.empty() ? 1 : shape[0];
  return launch(std::move(call));
}

void Group::barrier(const std::string& label) {
  launch(make_call(Operation::kBarrier, at::empty({0}, at::kByte), label)).wait();
}

std::vector<std::vector<int64_t>> Group::gather_counts(const std::vector<int64_t>& mine, const std::string& label) {
  const auto width = static_cast<int64_t>(mine.size());
  const at::Tensor local = at::tensor(mine, at::kLong).view({1, width});
  const at::Tensor all = all_gather(local, std::vector<int64_t>(size(), 1), label).wait();
  std::vector<std::vector<int64_t>> counts;
  for (const int64_t* row = all.const_data_ptr<int64_t>(); static_cast<int>(counts.size()) < size(); row += width) {
    counts.emplace_back(row, row + width);
  }
  return counts;
}

std::vector<int64_t> Group::exchange_counts(const std::vector<int64_t>& counts, const std::string& label) {
  HP_CHECK(static_cast<int>(counts.size()) == size(), "{}: {} counts for {} ranks", label, counts.size(), size());
  const std::vector<int64_t> one_each(size(), 1);
  const at::Tensor received = all_to_all(at::tensor(counts, at::kLong), one_each, one_each, label).wait();
  return {received.const_data_ptr<int64_t>(), received.const_data_ptr<int64_t>() + size()};
}

std::shared_ptr<Group> self_group(const std::string& name) {
  return std::make_shared<SelfGroup>(name);
}

}  // namespace hyperparallel::dist
