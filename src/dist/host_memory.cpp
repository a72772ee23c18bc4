#include "dist/host_memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string_view>

#include "base/error.h"
#include "base/log.h"
#include "dist/hardware_threads.h"
#include "dist/mpi_error.h"

namespace hyperparallel::dist {
namespace {

// Whether Open MPI's list of transports leaves shared memory out: "tcp,self", "^vader".
bool is_forbidden() {
  int provided = 0, index = 0, length = 0;
  if (MPI_T_init_thread(MPI_THREAD_SINGLE, &provided) != MPI_SUCCESS) return false;
  std::string list;
  MPI_T_cvar_handle handle;
  if (MPI_T_cvar_get_index("btl", &index) == MPI_SUCCESS &&
      MPI_T_cvar_handle_alloc(index, nullptr, &handle, &length) == MPI_SUCCESS) {
    std::string text(length, '\0');
    if (MPI_T_cvar_read(handle, text.data()) == MPI_SUCCESS) list = text.c_str();
    MPI_T_cvar_handle_free(&handle);
  }
  MPI_T_finalize();
  const bool is_exclusion = list.starts_with('^');
  list = fmt::format(",{},", list.substr(is_exclusion ? 1 : 0));
  const bool names_it = list.find(",vader,") != std::string::npos || list.find(",sm,") != std::string::npos;
  return list != ",," && names_it == is_exclusion;
}

// Hardware threads that at least one rank of the communicator may use.
int threads_of_all(MPI_Comm local) {
  const cpu_set_t mine = allowed_hardware_threads();
  cpu_set_t all;
  check_mpi(MPI_Allreduce(&mine, &all, sizeof(mine), MPI_BYTE, MPI_BOR, local), "MPI_Allreduce");
  return CPU_COUNT(&all);
}

struct flock byte_lock(int place) {
  struct flock lock = {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = place;
  lock.l_len = 1;
  return lock;
}

std::string reason(const char* what) {
  return fmt::format("{}: {}", what, std::strerror(errno));
}

}  // namespace

std::unique_ptr<HostMemory> HostMemory::share(MPI_Comm world, MPI_Comm local) {
  int world_rank = 0, world_size = 0, local_rank = 0, count = 0;
  MPI_Comm_rank(world, &world_rank);
  MPI_Comm_size(world, &world_size);
  MPI_Comm_rank(local, &local_rank);
  MPI_Comm_size(local, &count);
  std::unique_ptr<HostMemory> memory(new HostMemory);
  memory->count_ = count;
  memory->place_.assign(world_size, -1);
  std::vector<int> ranks(count);
  check_mpi(MPI_Allgather(&world_rank, 1, MPI_INT, ranks.data(), 1, MPI_INT, local), "MPI_Allgather");
  for (int i = 0; i < count; ++i) memory->place_[ranks[i]] = i;
  memory->has_threads_for_all_ = threads_of_all(local) >= count;

  // The first rank makes it, the others open it by way of /proc.
  const auto bytes = static_cast<int64_t>(sizeof(Space)) * count;
  int& file = memory->file_;
  std::string error;
  if (count > Window::kMostMembers) error = fmt::format("more than {} ranks on a host", Window::kMostMembers);
  if (local_rank == 0 && error.empty()) {
    file = memfd_create("hyperparallel", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, bytes) != 0) error = reason("memfd_create");
  }
  int64_t origin[2] = {getpid(), file};
  check_mpi(MPI_Bcast(origin, 2, MPI_INT64_T, 0, local), "MPI_Bcast");
  if (local_rank > 0 && origin[1] >= 0) {
    const std::string path = fmt::format("/proc/{}/fd/{}", origin[0], origin[1]);
    file = open(path.c_str(), O_RDWR | O_CLOEXEC);
    if (file < 0) error = reason(path.c_str());
  }
  if (file >= 0 && error.empty()) {
    void* const place = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    if (place == MAP_FAILED) {
      error = reason("mmap");
    } else {
      memory->spaces_ = static_cast<Space*>(place);
    }
    const struct flock lock = byte_lock(local_rank);
    if (error.empty() && fcntl(file, F_OFD_SETLK, &lock) != 0) error = reason("fcntl");
  }
  // All or none, and nobody looks for a lock before all hold theirs.
  const int forbidden = is_forbidden(), failed = error.empty() ? 0 : 1;
  int mine[2] = {forbidden, failed}, all[2] = {0, 0};
  check_mpi(MPI_Allreduce(mine, all, 2, MPI_INT, MPI_MAX, local), "MPI_Allreduce");
  if (count == 1 || all[0] != 0) return nullptr;
  if (failed)
    log::warn("rank {} cannot share memory with the other ranks of its host, so that they all use MPI: {}", world_rank, error);
  return all[1] == 0 ? std::move(memory) : nullptr;
}

HostMemory::~HostMemory() {
  if (spaces_ != nullptr) munmap(spaces_, sizeof(Space) * count_);
  if (file_ >= 0) close(file_);
}

bool HostMemory::has_all(const std::vector<int>& world_ranks) const {
  return std::all_of(world_ranks.begin(), world_ranks.end(), [&](int rank) { return has(rank); });
}

bool HostMemory::is_dead(int world_rank) const {
  struct flock lock = byte_lock(place_[world_rank]);
  return fcntl(file_, F_OFD_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
}

HostMemory::Space* HostMemory::space(int world_rank) const {
  return spaces_ + place_[world_rank];
}

}  // namespace hyperparallel::dist
