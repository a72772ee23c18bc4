// Exchanges between processes of this host, ours against blocking calls of MPI, in FP32; and what a rank that waits takes from
// one that computes.
//
//   build/release/bench_comm [RANKS [REPEATS]]      2 ranks, 5 repeats; some seconds each
//
// Starts itself under mpirun for ours and for MPI in turn. Bytes are those of one rank's input, times the median over repeats of
// the median of one process. Each call makes a new result tensor, as training does; its memory has been used before. Ranks are
// bound to cores where there are enough, so that both kinds of run have the same places.
#include <fmt/format.h>
#include <malloc.h>
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "dist/mpi_comm.h"

namespace {

using namespace hyperparallel;
using namespace hyperparallel::dist;
using Clock = std::chrono::steady_clock;

constexpr int64_t kSizes[] = {4, 4096, int64_t{1} << 20, int64_t{16} << 20};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double microseconds(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

// Prints the median time of a call in microseconds, as the parent reads it.
template <class Call>
void measure(const char* name, int64_t bytes, bool is_printed, Call call) {
  const int64_t rounds = bytes >= (1 << 24) ? 15 : bytes >= (1 << 20) ? 100 : 2000;
  std::vector<double> times;
  for (int64_t i = 0; i < rounds; ++i) {
    const auto start = Clock::now();
    call();
    times.push_back(microseconds(start));
  }
  if (is_printed) fmt::print("{} {} {}\n", name, bytes, median(times));
}

struct Inputs {
  Inputs(int64_t bytes, int size)
      : count(bytes / 4), share(std::max<int64_t>(count / size, 1)), local(at::ones({count})), shares(at::ones({share * size})) {}
  int64_t count, share;
  at::Tensor local, shares;  // [count], [size * share]
};

// A fixed amount of work in the registers of one core: microseconds.
double work() {
  const auto start = Clock::now();
  double x[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  for (int i = 0; i < 20'000'000; ++i) {
    for (double& value : x) value = value * 0.999 + 0.001;
  }
  volatile double kept = std::accumulate(x, x + 8, 0.0);
  (void)kept;
  return microseconds(start);
}

// The last rank works while the others sleep, and while they wait for it, in turn.
template <class Wait>
void measure_neighbour(const char* name, int rank, int size, Wait wait) {
  std::vector<double> alone, beside;
  for (int i = 0; i < 9; ++i) {
    wait();
    if (rank == size - 1) {
      alone.push_back(work());
    } else {
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
    }
    wait();
    if (rank == size - 1) beside.push_back(work());
    wait();
  }
  if (rank == size - 1) fmt::print("{} 0 {}\n", name, median(beside) / median(alone));
}

void ours(World& world) {
  std::vector<int> members(world.size());
  std::iota(members.begin(), members.end(), 0);
  const auto group = world.make_group({.name = "all", .members = members});
  const bool is_printed = world.rank() == 0;
  for (const int64_t bytes : kSizes) {
    const Inputs in(bytes, world.size());
    const std::vector<int64_t> rows(world.size(), in.count), shares(world.size(), in.share);
    measure("all_gather", bytes, is_printed, [&] { group->all_gather(in.local, rows, "gather").wait(); });
    measure("all_to_all", bytes, is_printed, [&] { group->all_to_all(in.shares, shares, shares, "rows").wait(); });
    measure("reduce_scatter", bytes, is_printed, [&] { group->reduce_scatter(in.shares, shares, "scatter").wait(); });
    measure("all_reduce", bytes, is_printed, [&] { group->all_reduce(in.local, "reduce").wait(); });
    measure("broadcast", bytes, is_printed, [&] { group->broadcast(in.local, 0, "broadcast").wait(); });
  }
  measure_neighbour("neighbour", world.rank(), world.size(), [&] { group->barrier("wait"); });
}

void bare_mpi() {
  MPI_Init(nullptr, nullptr);
  int rank = 0, size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  const bool is_printed = rank == 0;
  for (const int64_t bytes : kSizes) {
    const Inputs in(bytes, size);
    const auto count = static_cast<int>(in.count), share = static_cast<int>(in.share);
    const float *local = in.local.const_data_ptr<float>(), *shares = in.shares.const_data_ptr<float>();
    const auto result = [](int64_t size) { return at::empty({size}); };
    measure("all_gather", bytes, is_printed, [&] {
      const at::Tensor out = result(in.count * size);
      MPI_Allgather(local, count, MPI_FLOAT, out.mutable_data_ptr<float>(), count, MPI_FLOAT, MPI_COMM_WORLD);
    });
    measure("all_to_all", bytes, is_printed, [&] {
      const at::Tensor out = result(in.share * size);
      MPI_Alltoall(shares, share, MPI_FLOAT, out.mutable_data_ptr<float>(), share, MPI_FLOAT, MPI_COMM_WORLD);
    });
    measure("reduce_scatter", bytes, is_printed, [&] {
      const at::Tensor out = result(in.share);
      MPI_Reduce_scatter_block(shares, out.mutable_data_ptr<float>(), share, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    });
    measure("all_reduce", bytes, is_printed, [&] {
      const at::Tensor out = result(in.count);
      MPI_Allreduce(local, out.mutable_data_ptr<float>(), count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    });
    const at::Tensor shared = result(in.count);
    measure("broadcast", bytes, is_printed,
            [&] { MPI_Bcast(shared.mutable_data_ptr<float>(), count, MPI_FLOAT, 0, MPI_COMM_WORLD); });
  }
  measure_neighbour("neighbour", rank, size, [&] { MPI_Barrier(MPI_COMM_WORLD); });
  MPI_Finalize();
}

using Times = std::map<std::pair<std::string, int64_t>, std::vector<double>>;

bool run_processes(int ranks, const std::string& mode, Times& times, std::vector<std::pair<std::string, int64_t>>& order) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  const std::string command =
      fmt::format("mpirun -np {} --oversubscribe --bind-to {} --allow-run-as-root {} {}", ranks,
                  ranks > static_cast<int>(std::thread::hardware_concurrency()) ? "none" : "core", self, mode);
  FILE* pipe = popen(command.c_str(), "r");
  char name[64];
  long bytes = 0;
  double time = 0;
  while (std::fscanf(pipe, "%63s %ld %lf", name, &bytes, &time) == 3) {
    std::vector<double>& list = times[{name, bytes}];
    if (list.empty()) order.emplace_back(name, bytes);
    list.push_back(time);
  }
  return pclose(pipe) == 0;
}

int compare(int ranks, int repeats) {
  Times our_times, mpi_times;
  std::vector<std::pair<std::string, int64_t>> order, ignored;
  for (int i = 0; i < repeats; ++i) {
    if (!run_processes(ranks, "ours", our_times, order) || !run_processes(ranks, "mpi", mpi_times, ignored)) {
      fmt::print(stderr, "a run under mpirun failed\n");
      return 1;
    }
  }
  fmt::print("{} ranks, {} repeats\n{:<16} {:>10} {:>12} {:>12} {:>8}\n", ranks, repeats, "operation", "bytes", "ours", "MPI",
             "ratio");
  for (const auto& key : order) {
    const double our_time = median(our_times[key]), mpi_time = median(mpi_times[key]);
    if (key.first == "neighbour") {
      fmt::print("a neighbour's work takes {:.2f} times as long beside ranks that wait, {:.2f} times beside MPI's\n", our_time,
                 mpi_time);
    } else {
      fmt::print("{:<16} {:>10} {:>9.1f} us {:>9.1f} us {:>8.2f}\n", key.first, key.second, our_time, mpi_time,
                 our_time / mpi_time);
    }
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  const std::string mode = argc > 1 ? argv[1] : "2";
  mallopt(M_MMAP_MAX, 0);
  mallopt(M_TRIM_THRESHOLD, -1);
  if (mode == "ours") return static_cast<int>(run_mpi_ranks(ours));
  if (mode == "mpi") {
    bare_mpi();
    return 0;
  }
  const int ranks = std::atoi(mode.c_str()), repeats = argc > 2 ? std::atoi(argv[2]) : 5;
  if (ranks < 2 || repeats < 1) {
    fmt::print(stderr, "usage: bench_comm [RANKS [REPEATS]]\n");
    return 2;
  }
  return compare(ranks, repeats);
}
