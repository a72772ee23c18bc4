// Which tokens a rank holds, and fetching from others.
#include "models/adapter/shards.h"

#include <gmock/gmock.h>

#include <numeric>
#include <set>

namespace hyperparallel::models {
namespace {

engine::Layout layout(int cp, bool balanced) {
  engine::Layout result;
  result.mesh = dist::Mesh(cp, {.cp = cp});
  result.balanced = balanced;
  return result;
}

TEST(TokenShards, EveryTokenIsOnOneRank) {
  for (const int64_t tokens : {0, 1, 5, 64, 131}) {
    for (const int cp : {1, 2, 3, 8}) {
      for (const bool balanced : {false, true}) {
        const TokenShards shards(tokens, layout(cp, balanced));
        std::multiset<int64_t> all;
        for (int rank = 0; rank < cp; ++rank) {
          const std::vector<int64_t>& own = shards.tokens(rank);
          EXPECT_TRUE(std::is_sorted(own.begin(), own.end()));
          for (size_t row = 0; row < own.size(); ++row) {
            EXPECT_EQ(shards.owner(own[row]), rank);
            EXPECT_EQ(shards.row(own[row]), static_cast<int64_t>(row));
          }
          int64_t in_chunks = 0;
          for (const auto& [begin, end] : shards.chunks(rank)) in_chunks += end - begin;
          EXPECT_EQ(in_chunks, static_cast<int64_t>(own.size()));
          all.insert(own.begin(), own.end());
        }
        EXPECT_EQ(all.size(), static_cast<size_t>(tokens));
        EXPECT_EQ(std::set<int64_t>(all.begin(), all.end()).size(), static_cast<size_t>(tokens));
      }
    }
  }
}

// The work of causal attention over all earlier tokens: slowest rank over mean.
TEST(TokenShards, BalancedOnesHaveEqualCausalWork) {
  const auto imbalance = [](bool balanced) {
    const TokenShards shards(4096, layout(8, balanced));
    double most = 0, sum = 0;
    for (int rank = 0; rank < 8; ++rank) {
      const double work = std::accumulate(shards.tokens(rank).begin(), shards.tokens(rank).end(), 0.0);
      most = std::max(most, work);
      sum += work;
    }
    return most / (sum / 8);
  };
  EXPECT_LE(imbalance(true), 1.05);
  EXPECT_GT(imbalance(false), 1.5);
}

TEST(Fetch, EverySenderAndReceiverAgree) {
  const std::vector<std::vector<int64_t>> needs = {{9, 4, 11}, {0, 10, 2}, {5}, {}};  // item i lies on rank i / 3, row i % 3
  const auto place_of = [](int64_t item) { return ItemPlace{static_cast<int>(item / 3), item % 3}; };
  std::vector<Fetch> fetches;
  for (int rank = 0; rank < 4; ++rank) fetches.push_back(plan_fetch(needs, rank, place_of));
  for (int receiver = 0; receiver < 4; ++receiver) {
    std::vector<int64_t> arrived;  // items, as the senders lay them out
    for (int sender = 0; sender < 4; ++sender) {
      const Fetch& from = fetches[sender];
      EXPECT_EQ(from.send_rows[receiver], fetches[receiver].receive_rows[sender]);
      const int64_t first = std::accumulate(from.send_rows.begin(), from.send_rows.begin() + receiver, int64_t{0});
      for (int64_t i = 0; i < from.send_rows[receiver]; ++i) arrived.push_back(sender * 3 + from.send_index[first + i]);
    }
    EXPECT_EQ(arrived.size(), needs[receiver].size());
    for (int64_t item : needs[receiver]) EXPECT_EQ(arrived.at(fetches[receiver].received.at(item)), item);
  }
}

}  // namespace
}  // namespace hyperparallel::models
