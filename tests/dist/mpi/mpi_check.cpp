// One process of several that mpi_comm_test starts: mpi_check SCENARIO. The faulty rank is the last one.
#include <fmt/format.h>

#include <csignal>
#include <numeric>
#include <stdexcept>
#include <string_view>
#include <thread>

#include "dist/launch.h"
#include "dist/mesh.h"
#include "dist/mpi_comm.h"
#include "dist/operations.h"
#include "dist/thread_comm.h"

namespace hyperparallel::dist {
namespace {

std::shared_ptr<Group> everybody(World& world, const std::string& name, double timeout, Lane lane = Lane::kCritical) {
  std::vector<int> members(world.size());
  std::iota(members.begin(), members.end(), 0);
  return world.make_group({.name = name, .members = members, .lane = lane, .timeout = Seconds(timeout)});
}

// What one rank gets out of some calls whose sums depend on the order of addition.
std::vector<at::Tensor> sums(World& world) {
  const auto small = everybody(world, "small", 60), bulk = everybody(world, "bulk", 60, Lane::kBulk);
  const int size = world.size(), rank = world.rank();
  std::vector<Pending> pending;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    pending.push_back(bulk->all_reduce(values_of(rank, {1'500'003}, type, 1), "large"));  // several pieces a message
    pending.push_back(small->all_reduce(values_of(rank, {17}, type, 2), "short"));
    pending.push_back(
        bulk->reduce_scatter(values_of(rank, {size * 4099, 3}, type, 3), std::vector<int64_t>(size, 4099), "scatter"));
  }
  std::vector<at::Tensor> results;
  for (Pending& one : pending) results.push_back(one.wait());
  return results;
}

// What one rank has started goes on while it does something else, and groups do not wait for each other.
void background(World& world) {
  const int size = world.size(), rank = world.rank();
  const auto one = everybody(world, "one", 2), other = everybody(world, "other", 2, Lane::kBulk);
  const std::vector<int64_t> rows(size, 1'000'003);
  everybody(world, "begin", 60)->barrier("begin");
  Pending first = one->all_gather(values_of(rank, {rows[rank]}, at::kFloat, 1), rows, "first");
  Pending second = other->all_reduce(at::ones({500'009}), "second");
  if (rank == 0 && size > 1) std::this_thread::sleep_for(std::chrono::seconds(3));
  const auto wait_first = [&] {
    const at::Tensor all = first.wait();
    for (int r = 0; r < size; ++r) {
      if (!same_bits(all.narrow(0, r * rows[0], rows[0]), values_of(r, {rows[r]}, at::kFloat, 1)))
        throw std::runtime_error("rows that came in the background are wrong");
    }
  };
  if (rank != 1) wait_first();
  if (!same_bits(second.wait(), at::full({500'009}, static_cast<float>(size))))
    throw std::runtime_error("a sum that came in the background is wrong");
  if (rank == 1) wait_first();
}

void operations(World& world) {
  background(world);
  check_operations(*everybody(world, "all", 60));
  check_operations(*everybody(world, "all, bulk", 60, Lane::kBulk));
  const Groups groups = make_groups(world, Mesh(world.size(), {.tp = world.size() % 2 == 0 ? 2 : 1}), Seconds(60));
  for (const auto& [axis, group] : groups) check_operations(*group);

  const std::vector<at::Tensor> mine = sums(world);
  run_ranks(world.size(), {}, [&](World& threads) {
    const std::vector<at::Tensor> theirs = sums(threads);
    if (threads.rank() != world.rank()) return;
    for (size_t i = 0; i < mine.size(); ++i) {
      if (!same_bits(mine[i], theirs[i])) throw std::runtime_error(fmt::format("result {} differs from that of threads", i));
    }
  });
  if (world.rank() == 0) fmt::print("all operations are right\n");
}

void fault(std::string_view scenario, World& world) {
  const auto group = everybody(world, "tp", 1.0);
  const bool is_faulty = world.rank() == world.size() - 1;
  const std::vector<int64_t> rows(world.size(), 2);
  everybody(world, "start", 60)->barrier("start");  // processes start at different times
  group->barrier("start");
  if (is_faulty) {
    if (scenario == "operation") group->all_reduce(at::ones({2, 4}), "loss").wait();
    if (scenario == "rows")
      group
          ->all_to_all(at::ones({world.size()}), std::vector<int64_t>(world.size(), 1), std::vector<int64_t>(world.size(), 1),
                       "kv")
          .wait();
    if (scenario == "late") std::this_thread::sleep_for(std::chrono::seconds(3));
    if (scenario == "frozen") std::raise(SIGSTOP);
    if (scenario == "killed") std::raise(SIGKILL);
    if (scenario == "frozen in a call") {
      std::thread([] {
        std::this_thread::sleep_for(std::chrono::milliseconds(300));
        std::raise(SIGSTOP);
      }).detach();
    }
    if (scenario == "throws") throw DataError("train.jsonl:7: no messages");
    if (scenario == "ended") return;
  }
  if (scenario == "rows") {
    std::vector<int64_t> receive(world.size(), 1);
    if (world.rank() == 0) receive.back() = 2;
    group->all_to_all(at::ones({world.size()}), std::vector<int64_t>(world.size(), 1), receive, "kv").wait();
  }
  while (scenario == "frozen in a call") group->all_reduce(at::ones({3'000'017}), "gradients").wait();
  group->all_gather(at::ones({2, 4}), rows, "kv").wait();
}

}  // namespace
}  // namespace hyperparallel::dist

int main(int argc, char** argv) {
  using namespace hyperparallel::dist;
  const std::string_view scenario = argc > 1 ? argv[1] : "";
  if (scenario == "absent" && read_launch().rank == 1) std::raise(SIGSTOP);
  const MpiOptions options{.start_timeout = Seconds(scenario == "absent" ? 5 : 60), .end_timeout = Seconds(60)};
  const auto body = [&](World& world) { scenario == "operations" ? operations(world) : fault(scenario, world); };
  return static_cast<int>(run_mpi_ranks(body, options));
}
