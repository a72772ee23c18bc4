#include "engine/block_cache.h"

#include <gmock/gmock.h>

#include <atomic>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

namespace hyperparallel::engine {
namespace {

constexpr size_t kMiB = 1 << 20;

char* at(const BlockCache::Block& block) {
  return static_cast<char*>(block.memory);
}

TEST(BlockCache, FreedMemoryServesAgainInPartsAndTogether) {
  BlockCache cache;
  const auto block = cache.take(20 * kMiB + 1);
  EXPECT_EQ(block.size, 20 * kMiB + 4096);
  cache.give_back(block);
  EXPECT_EQ(cache.kept(), block.size);
  const auto first = cache.take(5 * kMiB), second = cache.take(15 * kMiB);
  EXPECT_EQ(first.memory, block.memory);
  EXPECT_EQ(at(second), at(block) + 5 * kMiB);
  EXPECT_EQ(cache.kept(), 4096u);
  cache.give_back(first);
  cache.give_back(second);
  EXPECT_EQ(cache.take(20 * kMiB + 1).memory, block.memory);
  EXPECT_EQ(cache.kept(), 0u);
}

TEST(BlockCache, TheSmallestRangeThatFitsServes) {
  BlockCache cache;
  const auto large = cache.take(9 * kMiB);
  cache.take(kMiB);
  const auto small = cache.take(4 * kMiB);
  cache.take(kMiB);
  cache.give_back(small);
  cache.give_back(large);
  EXPECT_EQ(cache.take(3 * kMiB).memory, small.memory);
  EXPECT_EQ(cache.take(4 * kMiB).memory, large.memory);
}

// NOTE [No more than the peak].
TEST(BlockCache, AllTogetherStaysWithinTheMostThatWasInUse) {
  BlockCache cache;
  std::mt19937_64 random(1);
  struct Taken {
    BlockCache::Block block;
    int mark;
  };
  std::vector<Taken> taken;
  size_t most = 0, most_kept = 0;
  for (int i = 0; i < 6000; ++i) {
    const bool growing = i % 2000 < 1000;
    if (taken.empty() || random() % 16 < (growing ? 9u : 7u)) {
      const size_t bytes = kMiB + random() % (12 * kMiB);
      taken.push_back({cache.take(bytes), i % 100});
      std::memset(at(taken.back().block), i % 100, 64);
      std::memset(at(taken.back().block) + bytes - 64, i % 100, 64);
    } else {
      std::swap(taken[random() % taken.size()], taken.back());
      for (int byte = 0; byte < 64; ++byte) ASSERT_EQ(at(taken.back().block)[byte], taken.back().mark);  // nobody else wrote
      cache.give_back(taken.back().block);
      taken.pop_back();
    }
    most = std::max(most, cache.in_use());
    most_kept = std::max(most_kept, cache.kept());
    ASSERT_LE(cache.in_use() + cache.kept(), most + BlockCache::kSlack);
  }
  EXPECT_GT(most_kept, BlockCache::kSlack / 2);
  for (const Taken& one : taken) cache.give_back(one.block);
  EXPECT_EQ(cache.in_use(), 0u);
}

// Holes that nothing fits into go back before new memory is touched.
TEST(BlockCache, HolesGoBackToTheSystem) {
  BlockCache cache;
  std::vector<BlockCache::Block> blocks;
  for (int i = 0; i < 800; ++i) blocks.push_back(cache.take(kMiB));
  for (size_t i = 0; i < blocks.size(); i += 2) cache.give_back(blocks[i]);
  const size_t holes = cache.kept();
  EXPECT_EQ(holes, 400 * kMiB);
  for (int i = 0; i < 400; ++i) cache.take(2 * kMiB);
  EXPECT_EQ(cache.in_use(), 1200 * kMiB);
  EXPECT_LE(cache.kept(), BlockCache::kSlack);
}

TEST(BlockCache, ThreadsGetBlocksOfTheirOwn) {
  BlockCache cache;
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        const auto block = cache.take(kMiB * (1 + (i * 7 + t) % 5));
        std::memset(block.memory, t, 4096);
        std::this_thread::yield();
        for (int byte = 0; byte < 4096; ++byte) wrong += at(block)[byte] != t;
        cache.give_back(block);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(cache.in_use(), 0u);
}

TEST(BlockCache, WhatTheSystemDoesNotHaveIsAnError) {
  BlockCache cache;
  EXPECT_THROW(cache.take(size_t{1} << 60), std::bad_alloc);
  EXPECT_THROW(cache.take(SIZE_MAX), std::bad_alloc);
  EXPECT_EQ(cache.in_use(), 0u);
}

}  // namespace
}  // namespace hyperparallel::engine
