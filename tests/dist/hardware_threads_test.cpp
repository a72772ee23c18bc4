#include "dist/hardware_threads.h"

#include <gmock/gmock.h>

namespace hyperparallel::dist {
namespace {

cpu_set_t set_of(const std::vector<int>& threads) {
  cpu_set_t set;
  CPU_ZERO(&set);
  for (int thread : threads) CPU_SET(thread, &set);
  return set;
}

std::vector<int> shares(const std::vector<std::vector<int>>& allowed) {
  std::vector<cpu_set_t> sets;
  for (const auto& threads : allowed) sets.push_back(set_of(threads));
  std::vector<int> found;
  for (size_t rank = 0; rank < sets.size(); ++rank) found.push_back(share_of_hardware_threads(sets, rank));
  return found;
}

TEST(HardwareThreads, AreThoseThatARankIsBoundToSharedWithOthersThatMayUseThem) {
  EXPECT_THAT(shares({{0, 1, 2, 3}}), testing::ElementsAre(4));
  EXPECT_THAT(shares({{0, 1}, {2, 3, 4}}), testing::ElementsAre(2, 3));                   // bound apart
  EXPECT_THAT(shares({{0, 1, 2, 3}, {0, 1, 2, 3}}), testing::ElementsAre(2, 2));          // not bound
  EXPECT_THAT(shares({{0, 1, 2}, {0, 1, 2}, {0, 1, 2}}), testing::ElementsAre(1, 1, 1));  // thirds add up
  EXPECT_THAT(shares({{0}, {0}, {0}}), testing::ElementsAre(1, 1, 1));                    // too few
  EXPECT_THAT(shares({{0, 1, 2, 3}, {3}}), testing::ElementsAre(3, 1));
}

TEST(HardwareThreads, OfAThreadThatIsBoundToOneAreOne) {
  const cpu_set_t before = allowed_hardware_threads();
  int first = 0;
  while (!CPU_ISSET(first, &before)) ++first;
  const cpu_set_t one = set_of({first});
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  EXPECT_EQ(share_of_hardware_threads({allowed_hardware_threads()}, 0), 1);
  sched_setaffinity(0, sizeof(before), &before);
}

}  // namespace
}  // namespace hyperparallel::dist
