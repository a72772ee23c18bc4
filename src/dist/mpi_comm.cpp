#include "dist/mpi_comm.h"

#include <fmt/format.h>

#include <set>

#include "dist/mpi_progress.h"

namespace hyperparallel::dist {
namespace {

class MpiGroup final : public Group {
 public:
  MpiGroup(const GroupOptions& options, MpiProgress& progress, int index)
      : Group(options, progress.rank()), progress_(progress), index_(index) {
    if (size() == 1 || !progress.host() || !progress.host()->has_all(members())) return;
    windows_ = std::make_shared<WindowQueue>(progress, options, rank(), index);
    progress.add(windows_);
  }

 protected:
  Pending start(Call call) override {
    if (size() == 1) {
      return Pending([call = std::move(call)] { return combine(call, {part_for(call, 0)}); });
    }
    const CallHeader header = header_for(call, rank());
    progress_.board().post(name(), header);
    if (windows_ && !call.point_to_point()) {
      const auto deadline = std::make_shared<Deadline>(options().timeout);
      const auto exchange = windows_->start(std::move(call));
      return Pending(
          [windows = windows_, exchange, deadline] { return windows->wait(*exchange, deadline->get()); },
          [windows = windows_, exchange, deadline] { return windows->has_ended(*exchange) || deadline->has_passed(); });
    }
    auto ticket = std::make_shared<MpiTicket>();
    ticket->description = describe_here(header);
    ticket->group_name = name();
    ticket->timeout = options().timeout.count();
    ticket->exchange =
        std::make_unique<MpiExchange>(std::move(call), members(), rank(), options().lane, index_, ticket->description);
    progress_.submit(ticket);
    const auto deadline = std::make_shared<Deadline>(options().timeout);
    return Pending([this, ticket, deadline] { return progress_.wait(*ticket, deadline->get()); },
                   [this, ticket, deadline] { return progress_.has_ended(*ticket) || deadline->has_passed(); });
  }

 private:
  MpiProgress& progress_;
  int index_;
  std::shared_ptr<WindowQueue> windows_;  // where all members share memory
};

class MpiWorld final : public World {
 public:
  explicit MpiWorld(MpiProgress& progress) : progress_(progress) {}
  int local_size() const override { return progress_.local_size(); }
  int hardware_threads() const override { return progress_.hardware_threads(); }
  int rank() const override { return progress_.rank(); }
  int size() const override { return progress_.size(); }

  std::shared_ptr<Group> make_group(const GroupOptions& options) override {
    HP_CHECK(names_.insert(options.name).second, "group \"{}\" is made twice", options.name);
    HP_CHECK(names_.size() <= HostMemory::kMostGroups, "more than {} groups", HostMemory::kMostGroups);
    return std::make_shared<MpiGroup>(options, progress_, static_cast<int>(names_.size()) - 1);
  }

  void abort(const std::string& reason) override { progress_.fail({ExitCode::kBug, reason}); }

 private:
  MpiProgress& progress_;
  std::set<std::string> names_;
};

void report(const std::string& message) {
  fmt::print(stderr, "error: {}\n", message);
  std::fflush(stderr);
}

}  // namespace

ExitCode run_mpi_ranks(const std::function<void(World&)>& body, const MpiOptions& options) {
  std::unique_ptr<MpiProgress> started;
  try {
    started = std::make_unique<MpiProgress>(read_launch(), options.start_timeout);
  } catch (...) {
    const Failure failure = current_failure();
    report(failure.message);
    return failure.code;
  }
  MpiProgress& progress = *started;
  MpiWorld world(progress);
  Failure own{ExitCode::kFinished, ""};
  try {
    body(world);
  } catch (...) {
    own = current_failure();
    report(with_rank(world.rank(), own.message));
    progress.fail(own);
  }
  const Failure others = progress.leave(options.end_timeout);
  if (own.code == ExitCode::kFinished && others.code != ExitCode::kFinished) report(with_rank(world.rank(), others.message));
  const ExitCode code = own.code == ExitCode::kFinished ? others.code : own.code;
  return code == ExitCode::kPeer ? progress.cause() : code;  // all end with the code of the one that failed by itself
}

}  // namespace hyperparallel::dist
