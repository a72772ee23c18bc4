#include "dist/thread_comm.h"

#include <ATen/Parallel.h>
#include <gmock/gmock.h>

#include <mutex>
#include <thread>

#include "dist/operations.h"

namespace hyperparallel::dist {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::shared_ptr<Group> everybody(World& world, double timeout = 60, const std::string& name = "tp") {
  std::vector<int> members;
  for (int rank = 0; rank < world.size(); ++rank) members.push_back(rank);
  return world.make_group({.name = name, .members = members, .timeout = Seconds(timeout)});
}

// Runs `body` on the ranks of one group and returns the PeerError that each rank met; "" where there was none.
std::vector<std::string> peer_errors(int size, double timeout, const std::function<void(Group&)>& body) {
  std::vector<std::string> messages(size);
  try {
    run_ranks(size, {}, [&](World& world) {
      const auto group = everybody(world, timeout);
      try {
        body(*group);
      } catch (const PeerError& error) {
        messages[world.rank()] = error.what();
        throw;
      }
    });
  } catch (const RankError&) {
  }
  return messages;
}

class ThreadCommOfSize : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Sizes, ThreadCommOfSize, testing::Range(1, 6), testing::PrintToStringParamName());

TEST_P(ThreadCommOfSize, EveryOperationEqualsPlainLoopsBitByBit) {
  run_ranks(GetParam(), {}, [](World& world) { check_operations(*everybody(world)); });
}

TEST(SelfGroup, EveryOperationEqualsPlainLoopsBitByBit) {
  check_operations(*self_group());
}

TEST(ThreadComm, GroupsOfOneNameAreIndependent) {
  run_ranks(5, {}, [](World& world) {
    const bool is_even = world.rank() % 2 == 0;
    const std::vector<int> members = is_even ? std::vector<int>{4, 0, 2} : std::vector<int>{3, 1};
    const auto group = world.make_group({.name = "part", .members = members});
    EXPECT_EQ(group->members()[group->rank()], world.rank());
    if (is_even) check_operations(*group);  // the other group calls less
    const at::Tensor ranks =
        group->all_gather(at::tensor({world.rank()}), std::vector<int64_t>(members.size(), 1), "ranks").wait();
    EXPECT_TRUE(at::equal(ranks, at::tensor(members)));
  });
}

TEST(ThreadComm, SumsInRankOrderRatherThanInOrderOfArrival) {
  const float values[] = {1e8f, 1.0f, -1e8f};  // only (a + b) + c gives 0
  run_ranks(3, {}, [&](World& world) {
    const auto group = everybody(world);
    for (int first = 0; first < 3; ++first) {
      if (world.rank() != first) std::this_thread::sleep_for(std::chrono::milliseconds(3 * (world.rank() + 1)));
      EXPECT_EQ(group->all_reduce(at::tensor({values[world.rank()]}), "sum").wait().item<float>(), 0.0f);
    }
  });
}

TEST(ThreadComm, SumsBFloat16InFP32) {
  run_ranks(4, {}, [](World& world) {
    // 256 + 1 is 256 in BF16; three times 1 must not get lost.
    const at::Tensor local = at::full({2}, world.rank() == 0 ? 256.0 : 1.0, at::kBFloat16);
    EXPECT_EQ(everybody(world)->all_reduce(local, "sum").wait()[1].item<float>(), 260.0f);  // 259 rounds to 260
  });
}

TEST(ThreadComm, RanksStartWithTheCallersGradModeAndTheirOwnThreadCount) {
  at::NoGradGuard no_grad;
  run_ranks(2, {.threads = 1}, [](World&) {
    EXPECT_FALSE(at::GradMode::is_enabled());
    EXPECT_EQ(at::get_num_threads(), 1);
  });
}

TEST(ThreadComm, ResultsCarryNoGraphAndShareNoMemoryAcrossRanks) {
  run_ranks(2, {}, [](World& world) {
    const auto group = everybody(world);
    const at::Tensor local = at::ones({2}).requires_grad_();
    at::Tensor sum = group->all_reduce(local, "sum").wait();
    EXPECT_FALSE(sum.requires_grad());
    sum.add_(world.rank());
    group->barrier("both have added");
    EXPECT_EQ(sum[0].item<float>(), 2.0f + static_cast<float>(world.rank()));
  });
}

TEST(ThreadComm, RefusesAnInputThatChangesOnTheWay) {
  try {
    run_ranks(1, {}, [](World& world) {
      at::Tensor local = at::ones({2});
      Pending sum = everybody(world)->all_reduce(local, "layer3.sum");
      local.add_(1);
      sum.wait();
    });
    FAIL();
  } catch (const RankError& error) {
    EXPECT_THAT(error.what(), HasSubstr("layer3.sum: the tensor was changed in place while it was being exchanged"));
  }
}

TEST(ThreadComm, RefusesRowsThatDoNotDescribeTheTensor) {
  const auto group = self_group();
  EXPECT_THROW(group->all_gather(at::ones({3}), {2}, "gather"), InternalError);
  EXPECT_THROW(group->reduce_scatter(at::ones({3}), {1, 2}, "scatter"), InternalError);
  EXPECT_THROW(group->all_to_all(at::ones({3}), {3}, {2}, "rows"), InternalError);
  EXPECT_THROW(group->send(at::ones({3}), 0, "to myself"), InternalError);
  EXPECT_THROW(group->barrier(""), InternalError);
}

TEST(Mismatch, OfTheOperationIsNamedOnEveryRank) {
  const auto messages = peer_errors(3, 60, [](Group& group) {
    if (group.rank() == 1) {
      group.all_reduce(at::ones({2, 4}), "loss").wait();
    } else {
      group.all_gather(at::ones({2, 4}), {2, 2, 2}, "kv").wait();
    }
    group.barrier("never");
  });
  EXPECT_THAT(messages[0], AllOf(HasSubstr("rank 0, group \"tp\" (ranks 0 1 2): all_gather \"kv\" #1, Float [2, 4]"),
                                 HasSubstr("the calls do not fit (operation)"),
                                 HasSubstr("rank 1 called all_reduce \"loss\" #1, Float [2, 4]")));
  EXPECT_THAT(messages[1], AllOf(HasSubstr("rank 1, group \"tp\" (ranks 0 1 2): all_reduce \"loss\" #1, Float [2, 4]"),
                                 HasSubstr("called all_gather \"kv\" #1, Float [2, 4]")));
  EXPECT_THAT(messages[2],
              AllOf(HasSubstr("rank 2, group \"tp\""), HasSubstr("all_gather \"kv\" #1"), HasSubstr("all_reduce \"loss\"")));
}

TEST(Mismatch, IsNamedToARankThatComesAfterTheOthersHaveFailed) {
  const auto messages = peer_errors(3, 60, [](Group& group) {
    if (group.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(100));
    group.all_reduce(at::ones({2}), group.rank() == 1 ? "loss" : "norm").wait();
  });
  EXPECT_THAT(messages[0], AllOf(HasSubstr("rank 0, group \"tp\" (ranks 0 1 2): all_reduce \"norm\" #1"),
                                 HasSubstr("the calls do not fit (label)"), HasSubstr("rank 1 called all_reduce \"loss\" #1"),
                                 Not(HasSubstr("failed: "))));
}

TEST(Mismatch, OfLabelTypeShapeRowsOrRootIsNamed) {
  const auto first = [](const std::function<void(Group&, bool)>& body) {
    return peer_errors(2, 60, [&](Group& group) { body(group, group.rank() == 1); })[0];
  };
  EXPECT_THAT(first([](Group& g, bool odd) { g.all_reduce(at::ones({2}), odd ? "b" : "a").wait(); }),
              HasSubstr("do not fit (label)"));
  EXPECT_THAT(first([](Group& g, bool odd) { g.all_reduce(at::ones({2}, odd ? at::kDouble : at::kFloat), "a").wait(); }),
              HasSubstr("do not fit (data type)"));
  EXPECT_THAT(first([](Group& g, bool odd) { g.all_reduce(at::ones({2, odd ? 3 : 4}), "a").wait(); }),
              HasSubstr("do not fit (size of dimension 1)"));
  EXPECT_THAT(first([](Group& g, bool odd) { g.all_reduce(at::ones({odd ? 3 : 4}), "a").wait(); }),
              HasSubstr("do not fit (rows: "));
  EXPECT_THAT(first([](Group& g, bool odd) { g.all_gather(at::ones({odd ? 3 : 4}), {4, odd ? 3 : 5}, "a").wait(); }),
              HasSubstr("do not fit (rows: "));
  EXPECT_THAT(first([](Group& g, bool odd) {
                const std::vector<int64_t> receive = odd ? std::vector<int64_t>{2, 1} : std::vector<int64_t>{1, 1};
                g.all_to_all(at::ones({2}), {1, 1}, receive, "a").wait();
              }),
              HasSubstr("do not fit (rows: "));
  EXPECT_THAT(first([](Group& g, bool odd) { g.broadcast(at::ones({2}), odd ? 1 : 0, "a").wait(); }),
              HasSubstr("do not fit (root: "));
  EXPECT_THAT(first([](Group& g, bool odd) { g.all_reduce(at::ones({2}), "a", odd ? Reduction::kMax : Reduction::kSum).wait(); }),
              HasSubstr("do not fit (reduction)"));
  EXPECT_THAT(first([](Group& g, bool odd) {
                if (odd) {
                  g.send(at::ones({2}), 0, "halo").wait();
                } else {
                  g.receive({3}, at::kFloat, 1, "halo").wait();
                }
              }),
              AllOf(HasSubstr("receive \"halo\" #1, Float [3]"), HasSubstr("rank 1 called send \"halo\" #1, Float [2]")));
}

TEST(LateRank, IsNamedWithItsLastCallOnEveryLiveRank) {
  const auto messages = peer_errors(3, 0.2, [](Group& group) {
    group.barrier("start");
    if (group.rank() == 2) std::this_thread::sleep_for(std::chrono::milliseconds(600));
    group.all_gather(at::ones({1, 3}), {1, 1, 1}, "kv").wait();
  });
  for (int rank = 0; rank < 2; ++rank) {
    EXPECT_THAT(messages[rank], AllOf(HasSubstr("rank " + std::to_string(rank) +
                                                ", group \"tp\" (ranks 0 1 2): all_gather \"kv\" #2, Float [1, 3]"),
                                      HasSubstr("rank 2 has not called it within 0.2 s"),
                                      HasSubstr("its last call is barrier \"start\" #1, Byte [0] in group \"tp\"")));
  }
  EXPECT_THAT(messages[2], AllOf(HasSubstr("rank 2, group"), HasSubstr("failed: rank ")));
}

TEST(LateRank, ThatHasEndedIsNotWaitedFor) {
  const auto messages = peer_errors(2, 600, [](Group& group) {
    if (group.rank() == 0) group.barrier("end");
  });
  EXPECT_THAT(messages[0],
              AllOf(HasSubstr("barrier \"end\" #1"), HasSubstr("rank 1 has ended without calling it; it has called nothing")));
}

TEST(LateRank, IsTimedFromTheWaitRatherThanFromTheStart) {
  run_ranks(2, {}, [](World& world) {
    const auto group = everybody(world, 1);
    Pending sum = group->all_reduce(at::ones({2}), "sum");
    if (world.rank() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1200));
    EXPECT_EQ(sum.wait()[0].item<float>(), 2.0f);
  });
}

TEST(LateRank, ThatIsPolledForIsNamedLikeOneThatIsWaitedFor) {
  const auto messages = peer_errors(2, 0.2, [](Group& group) {
    if (group.rank() == 1) std::this_thread::sleep_for(std::chrono::milliseconds(600));
    Pending sum = group.all_reduce(at::ones({2}), "sum");
    while (!sum.is_ready()) std::this_thread::yield();
    sum.wait();
  });
  EXPECT_THAT(messages[0], AllOf(HasSubstr("all_reduce \"sum\" #1"), HasSubstr("rank 1 has not called it within 0.2 s")));
  const auto ended = peer_errors(2, 600, [](Group& group) {
    if (group.rank() == 1) return;
    Pending sum = group.all_reduce(at::ones({2}), "sum");
    while (!sum.is_ready()) std::this_thread::yield();
    sum.wait();
  });
  EXPECT_THAT(ended[0], HasSubstr("rank 1 has ended without calling it"));
}

TEST(FailingRank, IsNamedToTheOthersAndToTheCaller) {
  std::mutex mutex;
  std::string others;
  try {
    run_ranks(3, {}, [&](World& world) {
      const auto all = everybody(world);
      const auto pair = world.rank() == 1 ? nullptr : world.make_group({.name = "pair", .members = {0, 2}});
      if (world.rank() == 1) throw DataError("train.jsonl:7: no messages");
      try {
        if (world.rank() == 2) all->barrier("with the failing rank");
        pair->barrier("without it");
      } catch (const PeerError& error) {
        std::lock_guard lock(mutex);
        others += error.what() + std::string("\n");
        throw;
      }
    });
    FAIL();
  } catch (const RankError& error) {
    EXPECT_EQ(error.rank(), 1);
    EXPECT_EQ(error.code(), ExitCode::kData);
    EXPECT_STREQ(error.what(), "rank 1: train.jsonl:7: no messages");
  }
  EXPECT_THAT(others,
              AllOf(HasSubstr("barrier \"without it\" #1, Byte [0]: rank 1 failed: train.jsonl:7: no messages"),
                    HasSubstr("barrier \"with the failing rank\" #1, Byte [0]: rank 1 failed: train.jsonl:7: no messages"),
                    Not(HasSubstr("rank 2 failed"))));
}

}  // namespace
}  // namespace hyperparallel::dist
