#include "dist/mesh.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/error.h"

namespace hyperparallel::dist {
namespace {

// Finds everything that is wrong with the degrees, and replaces each -1.
class Resolver {
 public:
  Resolver(int64_t world_size, MeshDegrees& degrees) : world_size_(world_size), degrees_(degrees) {}

  void run() {
    check_values();
    if (errors_.empty()) resolve_rest();
    if (errors_.empty()) resolve_views();
    if (errors_.empty()) return;
    throw ConfigError("the parallel degrees do not fit {} rank{}:\n  {}{}", world_size_, world_size_ == 1 ? "" : "s",
                      fmt::join(errors_, "\n  "),
                      world_size_ == 1 ? "\n  more ranks are started with --ranks N, or by mpirun or srun" : "");
  }

 private:
  void check_values() {
    const std::pair<const char*, int64_t> all[] = {{"pp", degrees_.pp},
                                                   {"fsdp_replicate", degrees_.fsdp_replicate},
                                                   {"fsdp_shard", degrees_.fsdp_shard},
                                                   {"cp", degrees_.cp},
                                                   {"tp", degrees_.tp},
                                                   {"ep", degrees_.ep},
                                                   {"vision_ulysses", degrees_.vision_ulysses}};
    for (const auto& [key, value] : all) {
      if (value < 1 && value != -1)
        errors_.push_back(fmt::format("parallel.{} is {}; accepted: 1 or more, or -1 for the rest", key, value));
    }
  }

  // pp x fsdp_replicate x fsdp_shard x tp = world.
  void resolve_rest() {
    int64_t known = 1, *rest = nullptr;
    std::vector<std::string> factors, open;
    const std::pair<const char*, int64_t*> all[] = {{"pp", &degrees_.pp},
                                                    {"fsdp_replicate", &degrees_.fsdp_replicate},
                                                    {"fsdp_shard", &degrees_.fsdp_shard},
                                                    {"tp", &degrees_.tp}};
    for (const auto& [key, value] : all) {
      if (*value == -1) {
        rest = value;
        open.push_back(fmt::format("parallel.{}", key));
      } else {
        known *= *value;
        factors.push_back(fmt::format("parallel.{} {}", key, *value));
      }
    }
    const std::string product = fmt::format("{} = {}", fmt::join(factors, " x "), known);
    if (open.size() > 1) {
      errors_.push_back(
          fmt::format("{} are all -1 (fsdp_shard is unless it is set); accepted: -1 for one of them", fmt::join(open, ", ")));
    } else if (rest && world_size_ % known != 0) {
      errors_.push_back(fmt::format("{} does not divide the {} ranks, so no {} fits", product, world_size_, open[0]));
    } else if (rest) {
      *rest = world_size_ / known;
    } else if (known != world_size_) {
      errors_.push_back(fmt::format("{}, but there are {} ranks (-1 for one degree means the rest)", product, world_size_));
    }
  }

  void resolve_views() {
    const int64_t fsdp = degrees_.fsdp_replicate * degrees_.fsdp_shard, stage = fsdp * degrees_.tp;
    if (degrees_.cp == -1) degrees_.cp = fsdp;
    if (degrees_.ep == -1) degrees_.ep = stage;
    if (degrees_.vision_ulysses == -1) degrees_.vision_ulysses = degrees_.tp;
    divides("cp", degrees_.cp, fsdp, "parallel.fsdp_replicate x parallel.fsdp_shard (= dp x cp)");
    divides("ep", degrees_.ep, stage, "parallel.fsdp_replicate x parallel.fsdp_shard x parallel.tp (= dp x cp x tp)");
    divides("vision_ulysses", degrees_.vision_ulysses, stage,
            "parallel.fsdp_replicate x parallel.fsdp_shard x parallel.tp (= dp x cp x tp)");
  }

  void divides(const char* key, int64_t degree, int64_t whole, const char* whole_name) {
    if (whole % degree != 0)
      errors_.push_back(fmt::format("parallel.{} {} does not divide {} = {}", key, degree, whole_name, whole));
  }

  int64_t world_size_;
  MeshDegrees& degrees_;
  std::vector<std::string> errors_;
};

}  // namespace

Mesh::Mesh(int64_t world_size, const MeshDegrees& degrees) : world_size_(static_cast<int>(world_size)), degrees_(degrees) {
  HP_CHECK(world_size >= 1, "a mesh of {} ranks", world_size);
  Resolver(world_size, degrees_).run();
  const auto as_int = [](int64_t value) { return static_cast<int>(value); };
  const int pp = as_int(degrees_.pp), cp = as_int(degrees_.cp), tp = as_int(degrees_.tp), ep = as_int(degrees_.ep);
  const int shard = as_int(degrees_.fsdp_shard), replicate = as_int(degrees_.fsdp_replicate);
  const int fsdp = replicate * shard, stage = fsdp * tp;
  axes_ = {{"world", {world_size_, 1}},
           {"pp", {pp, stage}},
           {"stage", {stage, 1}},
           {"dp", {fsdp / cp, cp * tp}},
           {"cp", {cp, tp}},
           {"tp", {tp, 1}},
           {"fsdp", {fsdp, tp}},
           {"fsdp_replicate", {replicate, shard * tp}},
           {"fsdp_shard", {shard, tp}},
           {"edp", {stage / ep, ep}},
           {"ep", {ep, 1}},
           {"vision", {as_int(degrees_.vision_ulysses), 1}},
           {"sample", {cp * tp, 1}}};
}

const std::vector<std::string>& Mesh::axes() {
  static const std::vector<std::string> names = {"world",      "pp",    "dp",  "cp", "tp",     "fsdp",  "fsdp_replicate",
                                                 "fsdp_shard", "stage", "edp", "ep", "vision", "sample"};
  return names;
}

const Mesh::Axis& Mesh::axis(const std::string& name) const {
  const auto found = axes_.find(name);
  HP_CHECK(found != axes_.end(), "\"{}\" is no mesh axis: {}", name, fmt::join(axes(), ", "));
  return found->second;
}

int Mesh::size(const std::string& name) const {
  return axis(name).size;
}

int Mesh::coordinate(const std::string& name, int rank) const {
  HP_CHECK(rank >= 0 && rank < world_size_, "rank {} of {}", rank, world_size_);
  return rank / axis(name).stride % axis(name).size;
}

std::vector<int> Mesh::members(const std::string& name, int rank) const {
  const auto [size, stride] = axis(name);
  const int first = rank - coordinate(name, rank) * stride;
  std::vector<int> ranks(size);
  for (int i = 0; i < size; ++i) ranks[i] = first + i * stride;
  return ranks;
}

Groups one_rank_groups() {
  Groups groups;
  for (const std::string& name : Mesh::axes()) groups[name] = self_group(name);
  return groups;
}

Groups make_groups(World& world, const Mesh& mesh, Seconds timeout) {
  HP_CHECK(world.size() == mesh.world_size(), "a mesh of {} ranks in a world of {}", mesh.world_size(), world.size());
  Groups groups;
  for (const std::string& name : Mesh::axes()) {
    const bool is_bulk = name.starts_with("fsdp") || name == "edp";
    groups[name] = world.make_group({.name = name,
                                     .members = mesh.members(name, world.rank()),
                                     .lane = is_bulk ? Lane::kBulk : Lane::kCritical,
                                     .timeout = timeout});
  }
  return groups;
}

}  // namespace hyperparallel::dist
