#include "models/adapter/shards.h"

namespace hyperparallel::models {

TokenShards::TokenShards(int64_t tokens, const engine::Layout& layout) : owner_(tokens), row_(tokens) {
  const int ranks = layout.size("cp");
  const int64_t parts = layout.balanced ? 2 * ranks : ranks;
  chunks_.resize(ranks);
  tokens_.resize(ranks);
  const auto add = [&](int rank, int64_t part) {
    const int64_t begin = engine::part_begin(tokens, parts, part), end = engine::part_begin(tokens, parts, part + 1);
    if (begin == end) return;
    std::vector<Chunk>& chunks = chunks_[rank];
    if (!chunks.empty() && chunks.back().second == begin) {
      chunks.back().second = end;
    } else {
      chunks.emplace_back(begin, end);
    }
    for (int64_t t = begin; t < end; ++t) {
      owner_[t] = rank;
      row_[t] = static_cast<int64_t>(tokens_[rank].size());
      tokens_[rank].push_back(t);
    }
  };
  for (int rank = 0; rank < ranks; ++rank) {
    add(rank, rank);
    if (layout.balanced) add(rank, 2 * ranks - 1 - rank);
  }
}

}  // namespace hyperparallel::models
