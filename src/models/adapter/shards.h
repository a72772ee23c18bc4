// Which tokens of a micro-batch each rank holds, and what it must fetch from others. Host arithmetic on the document borders,
// the same on every rank; nothing communicates here.
#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "engine/layout.h"

namespace hyperparallel::models {

// The tokens of a micro-batch over cp: contiguous shards, or balanced ones (2 cp chunks; rank r holds chunks r and 2 cp - 1 - r,
// so that all have equal causal work). Within a cp rank the tp ranks hold consecutive parts of its tokens, in its order.
class TokenShards {
 public:
  TokenShards(int64_t tokens, const engine::Layout& layout);

  using Chunk = std::pair<int64_t, int64_t>;  // [begin, end) of tokens
  int ranks() const { return static_cast<int>(chunks_.size()); }
  const std::vector<Chunk>& chunks(int cp_rank) const { return chunks_[cp_rank]; }    // ascending, no two touch
  const std::vector<int64_t>& tokens(int cp_rank) const { return tokens_[cp_rank]; }  // ascending
  int owner(int64_t token) const { return owner_[token]; }
  int64_t row(int64_t token) const { return row_[token]; }  // among the tokens of its owner

 private:
  std::vector<std::vector<Chunk>> chunks_;
  std::vector<std::vector<int64_t>> tokens_;
  std::vector<int> owner_;
  std::vector<int64_t> row_;
};

// How items that lie on ranks reach other ranks that need them, by an all-to-all: each rank sends what others need in their order
// of need, and finds what it received behind each other by rank of the sender.
struct Fetch {
  std::vector<int64_t> send_index;               // own rows to send, by receiver
  std::vector<int64_t> send_rows, receive_rows;  // by rank
  std::map<int64_t, int64_t> received;           // item -> row among those received
};
// `needs[r]`: items that rank r needs from others, none twice and none of its own.
struct ItemPlace {
  int rank;
  int64_t row;
};
template <class PlaceOf>  // item -> ItemPlace
Fetch plan_fetch(const std::vector<std::vector<int64_t>>& needs, int rank, const PlaceOf& place_of) {
  const auto ranks = static_cast<int>(needs.size());
  Fetch fetch;
  fetch.send_rows.assign(ranks, 0);
  fetch.receive_rows.assign(ranks, 0);
  for (int to = 0; to < ranks; ++to) {
    for (int64_t item : needs[to]) {
      if (place_of(item).rank != rank) continue;
      fetch.send_index.push_back(place_of(item).row);
      ++fetch.send_rows[to];
    }
  }
  int64_t row = 0;
  for (int from = 0; from < ranks; ++from) {
    for (int64_t item : needs[rank]) {
      if (place_of(item).rank != from) continue;
      fetch.received[item] = row++;
      ++fetch.receive_rows[from];
    }
  }
  return fetch;
}

}  // namespace hyperparallel::models
