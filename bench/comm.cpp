// Collectives between processes: ours against blocking calls of MPI. FP32; bytes are those of one rank's tensor. Each call makes
// a new result tensor, as training does. Run both:
//   mpirun -np 2 --bind-to none build/release/bench_comm ours
//   mpirun -np 2 --bind-to none build/release/bench_comm mpi
#include <fmt/format.h>
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <numeric>
#include <string_view>

#include "dist/mpi_comm.h"

namespace {

using namespace hyperparallel;
using namespace hyperparallel::dist;

// Shortest and middle time of one call in microseconds, over some tenths of a second.
template <class Call>
void measure(const char* name, int64_t bytes, bool is_printed, Call call) {
  using Clock = std::chrono::steady_clock;
  const int64_t rounds = std::clamp<int64_t>((int64_t{256} << 20) / std::max<int64_t>(bytes, 1), 10, 2000);
  std::vector<double> times;
  for (int64_t i = 0; i < rounds; ++i) {
    const auto start = Clock::now();
    call();
    times.push_back(std::chrono::duration<double, std::micro>(Clock::now() - start).count());
  }
  std::sort(times.begin(), times.end());
  if (is_printed) {
    const double middle = times[times.size() / 2];
    fmt::print("{:<16} {:>10} bytes  {:>10.1f} us least  {:>10.1f} us median  {:>7.2f} GB/s\n", name, bytes, times[0], middle,
               static_cast<double>(bytes) / middle / 1e3);
  }
}

constexpr int64_t kSizes[] = {4, 4096, int64_t{1} << 20, int64_t{16} << 20};

void ours(World& world) {
  std::vector<int> members(world.size());
  std::iota(members.begin(), members.end(), 0);
  const auto group = world.make_group({.name = "all", .members = members});
  for (const int64_t bytes : kSizes) {
    const int64_t count = bytes / 4, share = std::max<int64_t>(count / world.size(), 1);
    const at::Tensor local = at::ones({count}), shares = at::ones({share * world.size()});
    const std::vector<int64_t> rows(world.size(), count), share_rows(world.size(), share);
    const bool is_printed = world.rank() == 0;
    measure("all_gather", bytes, is_printed, [&] { group->all_gather(local, rows, "gather").wait(); });
    measure("all_to_all", bytes, is_printed, [&] { group->all_to_all(shares, share_rows, share_rows, "rows").wait(); });
    measure("all_reduce", bytes, is_printed, [&] { group->all_reduce(local, "reduce").wait(); });
  }
}

void bare_mpi() {
  MPI_Init(nullptr, nullptr);
  int rank = 0, size = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  for (const int64_t bytes : kSizes) {
    const int count = static_cast<int>(bytes / 4), share = std::max(count / size, 1);
    const at::Tensor local = at::ones({std::max(count, share * size)});
    const float* data = local.const_data_ptr<float>();
    const bool is_printed = rank == 0;
    measure("MPI_Allgather", bytes, is_printed, [&] {
      const at::Tensor result = at::empty({int64_t{count} * size});
      MPI_Allgather(data, count, MPI_FLOAT, result.mutable_data_ptr<float>(), count, MPI_FLOAT, MPI_COMM_WORLD);
    });
    measure("MPI_Alltoall", bytes, is_printed, [&] {
      const at::Tensor result = at::empty({share * size});
      MPI_Alltoall(data, share, MPI_FLOAT, result.mutable_data_ptr<float>(), share, MPI_FLOAT, MPI_COMM_WORLD);
    });
    measure("MPI_Allreduce", bytes, is_printed, [&] {
      const at::Tensor result = at::empty({count});
      MPI_Allreduce(data, result.mutable_data_ptr<float>(), count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    });
  }
  MPI_Finalize();
}

}  // namespace

int main(int argc, char** argv) {
  const std::string_view mode = argc > 1 ? argv[1] : "";
  if (mode == "ours") return static_cast<int>(run_mpi_ranks(ours));
  if (mode != "mpi") {
    fmt::print(stderr, "usage: mpirun -np N bench_comm ours|mpi\n");
    return 2;
  }
  bare_mpi();
  return 0;
}
