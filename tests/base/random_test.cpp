#include "base/random.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <set>

namespace hyperparallel {
namespace {

using testing::ElementsAre;

TEST(Philox, GivesThePublishedKnownAnswers) {
  EXPECT_THAT(philox({0, 0, 0, 0}, {0, 0}), ElementsAre(0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8));
  const uint32_t ones = 0xffffffff;
  EXPECT_THAT(philox({ones, ones, ones, ones}, {ones, ones}), ElementsAre(0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd));
  EXPECT_THAT(philox({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
              ElementsAre(0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1));
}

TEST(RandomStream, NormalHasTheMomentsAndTailsOfANormal) {
  const RandomStream stream(7, "weights");
  constexpr int kCount = 400000;
  double m1 = 0, m2 = 0, m3 = 0, m4 = 0, lag = 0, previous = 0;
  int beyond2 = 0, beyond3 = 0;
  for (int i = 0; i < kCount; ++i) {
    const double x = stream.normal(i);
    m1 += x, m2 += x * x, m3 += x * x * x, m4 += x * x * x * x, lag += x * previous;
    beyond2 += std::abs(x) > 2, beyond3 += std::abs(x) > 3;
    previous = x;
  }
  EXPECT_NEAR(m1 / kCount, 0, 0.008);
  EXPECT_NEAR(m2 / kCount, 1, 0.012);
  EXPECT_NEAR(m3 / kCount, 0, 0.03);
  EXPECT_NEAR(m4 / kCount, 3, 0.08);
  EXPECT_NEAR(lag / kCount, 0, 0.008);
  EXPECT_NEAR(beyond2 / double{kCount}, 0.0455, 0.0015);
  EXPECT_NEAR(beyond3 / double{kCount}, 0.0027, 0.0004);
}

TEST(RandomStream, NormalInvertsTheDistributionEverywhere) {
  const RandomStream stream(3, "inverse");
  for (int i = 0; i < 20000; ++i) {
    const double p = (static_cast<double>(stream.bits(i) >> 12) + 0.5) * 0x1p-52, x = stream.normal(i);
    EXPECT_NEAR(0.5 * std::erfc(-x / std::sqrt(2.0)), p, 1e-15 + 4e-16 * std::abs(x)) << i;
  }
}

TEST(RandomStream, UniformIsEvenAndBelowOne) {
  const RandomStream stream(7, "uniform");
  int counts[10] = {};
  for (int i = 0; i < 100000; ++i) {
    const double x = stream.uniform(i);
    ASSERT_TRUE(x >= 0 && x < 1);
    ++counts[static_cast<int>(x * 10)];
  }
  for (int count : counts) EXPECT_NEAR(count, 10000, 400);
}

TEST(RandomStream, SeedNameAndIndexAllMatter) {
  std::set<uint64_t> seen;
  for (uint64_t seed : {0, 1})
    for (const char* name : {"", "a", "b", "layers.1.w", "layers.11.w"})
      for (uint64_t index : {uint64_t{0}, uint64_t{1}, uint64_t{2}, uint64_t{1} << 33, uint64_t{1} << 63}) {
        seen.insert(RandomStream(seed, name).bits(index));
      }
  EXPECT_EQ(seen.size(), 2u * 5 * 5);
}

TEST(FillNormal, AShardHoldsTheBitsOfTheWhole) {
  std::vector<float> whole(1001);
  fill_normal(whole.data(), 1001, 5, "model.embed.weight", 0, 0.02);
  for (int64_t first : {0, 1, 2, 333, 1000}) {
    std::vector<float> shard(1001 - first);
    fill_normal(shard.data(), shard.size(), 5, "model.embed.weight", first, 0.02);
    EXPECT_TRUE(std::equal(shard.begin(), shard.end(), whole.begin() + first)) << first;
  }
}

TEST(FillNormal, BitsStayTheSameForEver) {
  float values[4];
  fill_normal(values, 4, 1234, "model.layers.0.attn.wkv.weight", int64_t{1} << 35, 0.02);
  std::vector<uint32_t> bits;
  for (float value : values) bits.push_back(std::bit_cast<uint32_t>(value));
  EXPECT_THAT(bits, ElementsAre(1021146189u, 3157047831u, 3140438478u, 1012494301u));
}

TEST(Permutation, HoldsEveryElementOnceAndDependsOnTheName) {
  std::vector<int64_t> order = random_permutation(1000, 1, "epoch-0"), again = random_permutation(1000, 1, "epoch-0");
  EXPECT_EQ(order, again);
  EXPECT_NE(order, random_permutation(1000, 1, "epoch-1"));
  EXPECT_NE(order, random_permutation(1000, 2, "epoch-0"));
  std::sort(order.begin(), order.end());
  for (int64_t i = 0; i < 1000; ++i) EXPECT_EQ(order[i], i);
  EXPECT_TRUE(random_permutation(0, 1, "x").empty());
}

TEST(Permutation, EveryOrderOfThreeIsAboutAsFrequent) {
  std::map<std::vector<int64_t>, int> counts;
  for (int seed = 0; seed < 6000; ++seed) ++counts[random_permutation(3, seed, "x")];
  EXPECT_EQ(counts.size(), 6u);
  for (const auto& [order, count] : counts) EXPECT_NEAR(count, 1000, 130);
}

}  // namespace
}  // namespace hyperparallel
