// Who holds what: this rank's place in the mesh, and the part of each parameter that it computes with and owns. Pure functions;
// nothing here communicates.
//
// NOTE [Parts]: a dimension of N cut for R ranks gives contiguous parts whose sizes differ by one at most, the larger ones first.
// Nothing is padded, and a part may be empty.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/box.h"
#include "dist/mesh.h"

namespace hyperparallel::engine {

struct ParameterSpec;  // engine/parameter.h

// Sizes of the parts of `total`, NOTE [Parts].
std::vector<int64_t> even_parts(int64_t total, int64_t parts);
// Where part `which` begins.
int64_t part_begin(int64_t total, int64_t parts, int64_t which);

// One rank in the mesh, with the choices that shape its program.
struct Layout {
  dist::Mesh mesh = dist::Mesh(1, dist::MeshDegrees());
  int rank = 0;
  bool sequence_parallel = false;  // residual streams are cut over tp between the regions that need all tokens
  bool balanced = false;           // cp ranks hold a chunk from the head and one from the tail of the tokens

  int size(const std::string& axis) const { return mesh.size(axis); }
  int coordinate(const std::string& axis) const { return mesh.coordinate(axis, rank); }
  // This rank's part of a dimension that is cut over an axis.
  int64_t part(int64_t total, const std::string& axis) const {
    return total / size(axis) + (coordinate(axis) < total % size(axis) ? 1 : 0);
  }
  int64_t begin(int64_t total, const std::string& axis) const { return part_begin(total, size(axis), coordinate(axis)); }
  // Of all ranks that own the same rows of a parameter, exactly one is primary: it counts for norms and saves.
  bool is_primary(const ParameterSpec& spec) const;
};

// Where one parameter lies on one rank. Boxes count in the whole parameter.
struct ParameterPlacement {
  Box part;                         // what segments compute with: the whole, or its part over tp or ep
  Box owned;                        // the shard of `part` whose master, gradient and optimizer state live on this rank
  int64_t shard_dim = 0;            // the dimension that the shards cut
  std::vector<int64_t> shard_rows;  // their sizes there, by rank of the shard axis; empty for what does not travel
};

// The axis over which a part is sharded: experts and tables that are cut over ep lie on `edp`, all else on `fsdp_shard`.
std::string shard_axis(const ParameterSpec& spec);
// The dimension that its shards cut: the first, but the second of stacked matrices that are fewer than the ranks.
int64_t shard_dim(const ParameterSpec& spec, const Layout& layout);
ParameterPlacement place(const ParameterSpec& spec, const Layout& layout);

}  // namespace hyperparallel::engine
