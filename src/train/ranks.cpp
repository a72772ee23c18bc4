#include "train/ranks.h"

#include "base/aten.h"

#include <cstring>

namespace hyperparallel::train {

double Ranks::sum(double value, const std::string& axis, const std::string& label) const {
  return group(axis).all_reduce(at::full({1}, value, at::kDouble), label).wait().item<double>();
}

int64_t Ranks::sum(int64_t value, const std::string& axis, const std::string& label) const {
  return group(axis).all_reduce(at::full({1}, value, at::kLong), label).wait().item<int64_t>();
}

std::string Ranks::broadcast(const std::string& text, int root, const std::string& label) const {
  dist::Group& all = group("world");
  const auto size = all.broadcast(at::full({1}, static_cast<int64_t>(text.size()), at::kLong), root, label + ".size").wait();
  at::Tensor bytes = at::zeros({size.item<int64_t>()}, at::kByte);
  if (layout.rank == root) std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  bytes = all.broadcast(bytes, root, label).wait().contiguous();
  return {static_cast<const char*>(bytes.const_data_ptr()), static_cast<size_t>(bytes.numel())};
}

std::shared_ptr<dist::Group> Ranks::checkpoint_group() const {
  if (world == nullptr) return dist::self_group("checkpoint");
  return world->make_group({.name = "checkpoint", .members = layout.mesh.members("world", layout.rank), .timeout = timeout});
}

Ranks one_rank() {
  Ranks ranks;
  ranks.groups = dist::one_rank_groups();
  return ranks;
}

namespace {

dist::MeshDegrees degrees_of(const ParallelSection& p) {
  return {.pp = p.pp,
          .fsdp_replicate = p.fsdp_replicate,
          .fsdp_shard = p.fsdp_shard,
          .cp = p.cp,
          .tp = p.tp,
          .ep = p.ep,
          .vision_ulysses = p.vision_ulysses};
}

}  // namespace

void check_layout(const Config& config, int64_t world_size) {
  dist::Mesh(world_size, degrees_of(config.parallel));
}

engine::Layout layout_of(const Config& config, int64_t world_size, int rank) {
  engine::Layout layout;
  layout.mesh = dist::Mesh(world_size, degrees_of(config.parallel));
  layout.rank = rank;
  layout.sequence_parallel = config.parallel.sequence_parallel;
  layout.balanced = config.parallel.cp_shard == CpShard::kBalanced;
  return layout;
}

Ranks make_ranks(const Config& config, dist::World* world) {
  Ranks ranks = one_rank();
  ranks.world = world;
  ranks.layout = layout_of(config, world != nullptr ? world->size() : 1, world != nullptr ? world->rank() : 0);
  ranks.timeout = dist::Seconds(config.parallel.timeout);
  if (world != nullptr) ranks.groups = dist::make_groups(*world, ranks.layout.mesh, ranks.timeout);
  return ranks;
}

}  // namespace hyperparallel::train
