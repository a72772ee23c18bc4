// Who is next to whom: the ranks of a run as a mesh with named axes. A plain value; it does not communicate.
//
//   World = pp x dp x cp x tp, tp innermost: tp neighbours are consecutive ranks, a pipeline stage is a block of ranks.
//   Within one stage, the same ranks are also cut
//     for dense parameters:  dp x cp = fsdp = fsdp_replicate x fsdp_shard (and tp)
//     for experts, tables:   dp x cp x tp = stage = edp x ep, ep innermost
//     for pictures:          stage into groups of vision_ulysses consecutive ranks, axis `vision`
//   The cp x tp ranks that hold parts of the same micro-batch are the axis `sample`.
// (design: one mesh, several views; spec/system.md 6.1.)
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "dist/world.h"

namespace hyperparallel::dist {

// The keys of `parallel` in the configuration. -1 in one of pp, fsdp_replicate, fsdp_shard, tp means the rest of the world;
// cp = -1 all of fsdp (dp = 1), ep = -1 the whole stage (edp = 1), vision_ulysses = -1 the tp degree.
struct MeshDegrees {
  int64_t pp = 1;
  int64_t fsdp_replicate = 1;
  int64_t fsdp_shard = -1;
  int64_t cp = 1;
  int64_t tp = 1;
  int64_t ep = 1;
  int64_t vision_ulysses = -1;
};

class Mesh {
 public:
  // Throws one ConfigError for all degrees that do not fit; each line names both numbers and the keys (parallel.tp, ...).
  Mesh(int64_t world_size, const MeshDegrees& degrees);

  int world_size() const { return world_size_; }
  // With every -1 replaced.
  const MeshDegrees& degrees() const { return degrees_; }

  // world, pp, dp, cp, tp, fsdp, fsdp_replicate, fsdp_shard, stage, edp, ep, vision, sample
  static const std::vector<std::string>& axes();
  // Number of ranks in each group of the axis.
  int size(const std::string& axis) const;
  // The place of a world rank in its group of the axis.
  int coordinate(const std::string& axis, int rank) const;
  // The world ranks of the group that contains `rank`, by coordinate.
  std::vector<int> members(const std::string& axis, int rank) const;

 private:
  // A group of an axis: ranks that differ only in `rank / stride % size`.
  struct Axis {
    int size, stride;
  };
  const Axis& axis(const std::string& name) const;

  int world_size_;
  MeshDegrees degrees_;
  std::map<std::string, Axis> axes_;
};

using Groups = std::map<std::string, std::shared_ptr<Group>>;  // by axis

// A group of one on every axis, for a process that is the only rank.
Groups one_rank_groups();

// The groups of this rank on every axis. The axes of weights and gradients (fsdp*, edp) are bulk, all others critical.
Groups make_groups(World& world, const Mesh& mesh, Seconds timeout = Seconds(600));

}  // namespace hyperparallel::dist
