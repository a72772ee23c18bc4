#include "dist/launch.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace hyperparallel::dist {
namespace {

// One launcher's variables; the first one that is set of each list counts.
struct Source {
  const char* launcher;
  std::vector<const char*> rank, world_size, local_rank, local_size;
};

const std::vector<Source>& sources() {
  static const std::vector<Source> all = {
      {"torchrun", {"RANK"}, {"WORLD_SIZE"}, {"LOCAL_RANK"}, {"LOCAL_WORLD_SIZE"}},
      {"Open MPI",
       {"OMPI_COMM_WORLD_RANK"},
       {"OMPI_COMM_WORLD_SIZE"},
       {"OMPI_COMM_WORLD_LOCAL_RANK"},
       {"OMPI_COMM_WORLD_LOCAL_SIZE"}},
      {"MPICH or Intel MPI", {"PMI_RANK"}, {"PMI_SIZE"}, {"MPI_LOCALRANKID"}, {"MPI_LOCALNRANKS"}},
      {"Slurm", {"SLURM_PROCID"}, {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"}, {"SLURM_LOCALID"}, {"SLURM_NTASKS_PER_NODE"}}};
  return all;
}

using Get = std::function<const char*(const char*)>;

std::optional<int> number(const Get& get, const std::vector<const char*>& names, std::string& shown) {
  for (const char* name : names) {
    const char* text = get(name);
    if (!text || !*text) continue;
    const std::string_view view(text);
    int value = 0;
    const auto [end, error] = std::from_chars(view.begin(), view.end(), value);
    if (error != std::errc() || end != view.end() || value < 0) {
      throw ConfigError("{}={} in the environment is not a number of 0 or more", name, view);
    }
    shown += fmt::format("{}{}={}", shown.empty() ? "" : " ", name, value);
    return value;
  }
  return std::nullopt;
}

struct Found {
  Launch launch;
  std::string shown;  // RANK=0 WORLD_SIZE=2
};

std::optional<Found> read_source(const Get& get, const Source& source) {
  Found found;
  found.launch.launcher = source.launcher;
  const auto rank = number(get, source.rank, found.shown), world_size = number(get, source.world_size, found.shown);
  // A lone WORLD_SIZE or SLURM_NTASKS (salloc) says nothing about this process.
  if (!rank) return std::nullopt;
  if (!world_size) {
    throw ConfigError("the environment has {} ({}), but not {}", found.shown, source.launcher, source.world_size.back());
  }
  if (*rank >= *world_size) {
    throw ConfigError("the environment has {} ({}): the rank must be less than the number of ranks", found.shown,
                      source.launcher);
  }
  found.launch.rank = *rank;
  found.launch.world_size = *world_size;
  std::string ignored;
  found.launch.local_rank = number(get, source.local_rank, ignored).value_or(0);
  found.launch.local_size = std::max(1, number(get, source.local_size, ignored).value_or(1));
  return found;
}

}  // namespace

Launch read_launch(const Get& get) {
  std::optional<Found> first;
  for (const Source& source : sources()) {
    if (first && source.launcher == std::string_view("Slurm")) break;
    const std::optional<Found> found = read_source(get, source);
    if (!found) continue;
    if (!first) {
      first = found;
    } else if (first->launch.rank != found->launch.rank || first->launch.world_size != found->launch.world_size) {
      throw ConfigError(
          "two launchers contradict each other in the environment: {} ({}) and {} ({}); unset those that do not hold",
          first->shown, first->launch.launcher, found->shown, found->launch.launcher);
    }
  }
  return first ? first->launch : Launch{};
}

Launch read_launch() {
  return read_launch([](const char* name) { return std::getenv(name); });
}

}  // namespace hyperparallel::dist
