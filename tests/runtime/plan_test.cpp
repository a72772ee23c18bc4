#include <atomic>
#include <mutex>
#include <numeric>
#include <thread>

#include "base/error.h"
#include "runtime/plan_cache.h"
#include "runtime/run.h"
#include "support/tensors.h"

namespace hyperparallel::runtime {
namespace {

using ::testing::HasSubstr;

// Tiles in two stages: the second of a tile after its first, and one task at the end of all.
Plan two_stages(int tiles) {
  Plan plan;
  const int first = plan.add_stage("first", TaskKind::kMatrix), second = plan.add_stage("second", TaskKind::kVector),
            last = plan.add_stage("last", TaskKind::kVector);
  const int all = plan.add_counter("all tiles");
  plan.add_task(last, 0, {all, tiles}, {});
  for (int tile = 0; tile < tiles; ++tile) {
    const int done = plan.add_counter("first of tile " + std::to_string(tile));
    plan.add_task(first, tile, {}, {done});
    plan.add_task(second, tile, {done, 1}, {all});
  }
  plan.close();
  return plan;
}

class RunTest : public ::testing::TestWithParam<std::pair<int, int>> {  // tiles, threads
 protected:
  void SetUp() override { at::set_num_threads(GetParam().second); }
  void TearDown() override { at::set_num_threads(1); }
};

TEST_P(RunTest, EveryTaskRunsOnceAfterWhatItWaitsFor) {
  const int tiles = GetParam().first;
  const Plan plan = two_stages(tiles);
  for (int repetition = 0; repetition < 20; ++repetition) {
    std::vector<int> state(tiles, 0);  // plain memory: the runtime must order these accesses
    int sum = -1;
    std::atomic<int> tasks = 0;
    run(plan, [&](int stage, int tile, int worker) {
      ASSERT_GE(worker, 0);
      ASSERT_LT(worker, GetParam().second);
      ++tasks;
      if (stage == 2) {
        sum = std::accumulate(state.begin(), state.end(), 0);
      } else {
        EXPECT_EQ(state[tile]++, stage);
      }
    });
    EXPECT_EQ(tasks, 2 * tiles + 1);
    EXPECT_EQ(sum, 2 * tiles);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Sizes, RunTest, ::testing::Values(std::pair{0, 2}, std::pair{1, 1}, std::pair{7, 2}, std::pair{63, 3}, std::pair{5000, 4}),
    [](const auto& info) { return std::to_string(info.param.first) + "tiles" + std::to_string(info.param.second) + "threads"; });

TEST(RunTest, OneWorkerTakesReadyTasksInTheOrderInWhichTheyWereAdded) {
  std::vector<std::pair<int, int>> order;
  at::set_num_threads(1);
  run(two_stages(3), [&](int stage, int tile, int) { order.push_back({stage, tile}); });
  EXPECT_EQ(order, (std::vector<std::pair<int, int>>{{0, 0}, {1, 0}, {0, 1}, {1, 1}, {0, 2}, {1, 2}, {2, 0}}));
}

TEST(RunTest, TasksOfOneCounterWakeAtTheirOwnThresholds) {
  Plan plan;
  const int stage = plan.add_stage("step", TaskKind::kVector), steps = plan.add_counter("steps");
  for (int i = 9; i >= 0; --i) plan.add_task(stage, i, {steps, i}, {steps});
  plan.close();
  std::vector<int> order;
  at::set_num_threads(3);
  run(plan, [&](int, int tile, int) { order.push_back(tile); });
  at::set_num_threads(1);
  std::vector<int> expected(10);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(order, expected);
}

TEST(RunTest, TheFirstExceptionEndsTheRun) {
  at::set_num_threads(2);
  const Plan plan = two_stages(100);
  for (int repetition = 0; repetition < 5; ++repetition) {
    std::atomic<int> after = 0;
    try {
      run(plan, [&](int stage, int tile, int) {
        if (stage == 0 && tile == 40) throw DataError("tile 40");
        if (stage == 2) ++after;
      });
      FAIL();
    } catch (const DataError& error) {
      EXPECT_STREQ(error.what(), "tile 40");
    }
    EXPECT_EQ(after, 0);
  }
  at::set_num_threads(1);
}

// Communication is asked for between other tasks; it ends when it says so, takes no worker, and wakes what waits for it.
TEST(RunTest, CommunicationIsUnderWayWhileOtherTasksRun) {
  for (const int threads : {1, 2}) {
    at::set_num_threads(threads);
    Plan plan;
    const int send = plan.add_stage("send", TaskKind::kCommunication), rows = plan.add_stage("rows", TaskKind::kCommunication),
              work = plan.add_stage("work", TaskKind::kVector), last = plan.add_stage("last", TaskKind::kVector);
    const int sent = plan.add_counter("sent"), here = plan.add_counter("here"), all = plan.add_counter("all");
    plan.add_task(send, 0, {}, {sent});
    plan.add_task(rows, 0, {sent, 1}, {here, all});
    plan.add_task(rows, 1, {sent, 1}, {here, all});
    for (int tile = 0; tile < 50; ++tile) plan.add_task(work, tile, {}, {all});
    plan.add_task(last, 0, {here, 2}, {});
    plan.close();
    std::atomic<int> done = 0, lasts = 0;
    int sends = 0;
    std::array<int, 2> asked = {};  // nobody else may ask meanwhile: plain memory
    const double waited = run(
        plan,
        [&](int stage, int, int) {
          if (stage == last) {
            ++lasts;
            EXPECT_GE(asked[0], 30);
            EXPECT_GE(asked[1], 90);  // after all else is done
          } else {
            ++done;
          }
        },
        [&](int stage, int tile) {
          if (stage == send) return ++sends > 0;
          return ++asked[tile] >= (tile == 0 ? 30 : 90);
        });
    EXPECT_EQ(sends, 1);
    EXPECT_EQ(done, 50);
    EXPECT_EQ(lasts, 1);
    EXPECT_GE(waited, threads == 1 ? 1e-9 : 0.0);  // another worker may have waited alone
  }
  at::set_num_threads(1);
}

TEST(RunTest, CommunicationThatFailsEndsTheRun) {
  Plan plan;
  const int rows = plan.add_stage("rows", TaskKind::kCommunication), work = plan.add_stage("work", TaskKind::kVector);
  const int here = plan.add_counter("here");
  plan.add_task(rows, 0, {}, {here});
  plan.add_task(work, 0, {here, 1}, {});
  plan.close();
  int asked = 0;
  const Body body = [](int, int, int) { FAIL() << "its rows never came"; };
  EXPECT_THROW(run(plan, body,
                   [&](int, int) {
                     if (++asked == 5) throw PeerError("rank 1 is dead");
                     return false;
                   }),
               PeerError);
  EXPECT_THROW(run(plan, body), InternalError);  // nobody to ask
}

TEST(RunTest, OnePlanRunsOnSeveralThreadsAtOnce) {
  const Plan plan = two_stages(200);
  std::vector<std::thread> threads;
  std::array<std::atomic<int>, 4> tasks = {};
  for (auto& count : tasks) threads.emplace_back([&] { run(plan, [&](int, int, int) { ++count; }); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& count : tasks) EXPECT_EQ(count, 401);
}

TEST(PlanTest, TasksThatWaitForEverAreNamedWithWhatTheyWaitFor) {
  Plan plan;
  const int stage = plan.add_stage("down", TaskKind::kMatrix), a = plan.add_counter("rows of expert 3"),
            b = plan.add_counter("b");
  plan.add_task(stage, 0, {}, {a});
  plan.add_task(stage, 7, {a, 2}, {b});
  plan.add_task(stage, 8, {b, 1}, {a});
  try {
    plan.close();
    FAIL();
  } catch (const InternalError& error) {
    EXPECT_THAT(error.what(), HasSubstr("down 7 waits for rows of expert 3: 1 of 2"));
    EXPECT_THAT(error.what(), HasSubstr("down 8 waits for b: 0 of 1"));
  }
  EXPECT_THROW(run(plan, [](int, int, int) {}), InternalError);
}

TEST(PlanCacheTest, BuildsOnceAndGivesAllTheSame) {
  PlanCache<int> cache;
  int built = 0;
  const auto get = [&](int tiles) {
    return cache.get(tiles, [&](Plan& plan) {
      ++built;
      plan = two_stages(tiles);
    });
  };
  const auto first = get(3);
  EXPECT_EQ(get(3), first);
  EXPECT_NE(get(4), first);
  EXPECT_EQ(built, 2);
}

}  // namespace
}  // namespace hyperparallel::runtime
