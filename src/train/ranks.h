// The ranks of a run as its parts need them: the world, this rank's place in the mesh, and its groups.
#pragma once

#include <memory>
#include <string>

#include "dist/world.h"
#include "engine/layout.h"
#include "train/config.h"

namespace hyperparallel::train {

struct Ranks {
  dist::World* world = nullptr;  // nullptr: this process is the only rank
  engine::Layout layout;
  dist::Groups groups;                         // of every axis
  dist::Seconds timeout = dist::Seconds(600);  // of every group

  bool is_first() const { return layout.rank == 0; }
  dist::Group& group(const std::string& axis) const { return *groups.at(axis); }
  // A group of all ranks for the thread that saves checkpoints; every rank calls it once.
  std::shared_ptr<dist::Group> checkpoint_group() const;
  // Sums over the ranks of an axis, the same on all of them; every rank of the axis calls them.
  double sum(double value, const std::string& axis, const std::string& label) const;
  int64_t sum(int64_t value, const std::string& axis, const std::string& label) const;
  // The text of rank `root` of the world, on every rank of it.
  std::string broadcast(const std::string& text, int root, const std::string& label) const;
};

// This process alone, whatever the configuration says.
Ranks one_rank();
// Throws ConfigError, before anything is built, where degrees do not fit so many ranks.
void check_layout(const Config& config, int64_t world_size);
// The place of a rank in the mesh of so many ranks. Throws as check_layout.
engine::Layout layout_of(const Config& config, int64_t world_size, int rank = 0);
// Throws as check_layout. `world` must outlive the result.
Ranks make_ranks(const Config& config, dist::World* world);

}  // namespace hyperparallel::train
