#include "dist/mesh.h"

#include <gmock/gmock.h>

#include <set>

#include "base/error.h"
#include "dist/thread_comm.h"

namespace hyperparallel::dist {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

std::string refusal(int64_t ranks, const MeshDegrees& degrees) {
  try {
    Mesh(ranks, degrees);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Mesh, OfOneRankHasGroupsOfOne) {
  const Mesh mesh(1, {});
  for (const std::string& axis : Mesh::axes()) {
    EXPECT_EQ(mesh.size(axis), 1) << axis;
    EXPECT_THAT(mesh.members(axis, 0), ElementsAre(0)) << axis;
  }
}

TEST(Mesh, OfEightRanksHasTensorParallelInnermost) {
  const Mesh mesh(8, {.cp = 2, .tp = 2, .ep = 4});
  EXPECT_EQ(mesh.degrees().fsdp_shard, 4);
  EXPECT_THAT(mesh.members("tp", 5), ElementsAre(4, 5));
  EXPECT_THAT(mesh.members("cp", 5), ElementsAre(5, 7));
  EXPECT_THAT(mesh.members("dp", 5), ElementsAre(1, 5));
  EXPECT_THAT(mesh.members("fsdp", 5), ElementsAre(1, 3, 5, 7));
  EXPECT_THAT(mesh.members("ep", 5), ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(mesh.members("edp", 5), ElementsAre(1, 5));
  EXPECT_THAT(mesh.members("vision", 5), ElementsAre(4, 5));
  EXPECT_EQ(mesh.coordinate("cp", 6), 1);
  EXPECT_EQ(mesh.coordinate("fsdp", 6), 3);
}

TEST(Mesh, CutsStagesReplicasAndVisionGroups) {
  const Mesh mesh(24, {.pp = 2, .fsdp_replicate = 2, .fsdp_shard = 3, .cp = 3, .tp = -1, .ep = -1, .vision_ulysses = 4});
  EXPECT_EQ(mesh.degrees().tp, 2);
  EXPECT_EQ(mesh.size("edp"), 1);
  EXPECT_EQ(mesh.size("stage"), 12);
  EXPECT_THAT(mesh.members("pp", 17), ElementsAre(5, 17));
  EXPECT_THAT(mesh.members("fsdp_shard", 17), ElementsAre(13, 15, 17));
  EXPECT_THAT(mesh.members("fsdp_replicate", 17), ElementsAre(17, 23));
  EXPECT_THAT(mesh.members("cp", 17), ElementsAre(13, 15, 17));
  EXPECT_THAT(mesh.members("dp", 17), ElementsAre(17, 23));
  EXPECT_THAT(mesh.members("vision", 17), ElementsAre(16, 17, 18, 19));
  EXPECT_THAT(mesh.members("ep", 17), ElementsAre(12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23));
}

TEST(Mesh, CutsTheWorldIntoDisjointGroupsOnEveryAxis) {
  const std::pair<int, MeshDegrees> shapes[] = {{12, {.cp = 3, .tp = 2, .ep = 6}},
                                                {16, {.fsdp_replicate = 2, .tp = 4, .ep = 8}},
                                                {15, {.fsdp_shard = 5, .cp = 5, .tp = 3, .ep = 5}}};
  for (const auto& [ranks, degrees] : shapes) {
    const Mesh mesh(ranks, degrees);
    for (const std::string& axis : Mesh::axes()) {
      std::set<std::vector<int>> groups;
      for (int rank = 0; rank < ranks; ++rank) {
        const std::vector<int> members = mesh.members(axis, rank);
        EXPECT_EQ(members.at(mesh.coordinate(axis, rank)), rank);
        groups.insert(members);
      }
      EXPECT_EQ(static_cast<int>(groups.size()) * mesh.size(axis), ranks) << axis;
    }
  }
}

TEST(Mesh, NamesBothNumbersAndKeysOfDegreesThatDoNotFit) {
  EXPECT_THAT(refusal(8, {.tp = 3}),
              HasSubstr("parallel.pp 1 x parallel.fsdp_replicate 1 x parallel.tp 3 = 3 does not divide the 8 ranks, "
                        "so no parallel.fsdp_shard fits"));
  EXPECT_THAT(refusal(8, {.fsdp_shard = 2, .tp = 2}),
              HasSubstr("parallel.fsdp_shard 2 x parallel.tp 2 = 4, but there are 8 ranks (-1 for one degree means the rest)"));
  EXPECT_THAT(refusal(8, {.fsdp_shard = -1, .tp = -1}), HasSubstr("parallel.fsdp_shard, parallel.tp are all -1"));
  EXPECT_THAT(refusal(8, {.tp = 0}), HasSubstr("parallel.tp is 0; accepted: 1 or more, or -1 for the rest"));
}

TEST(Mesh, ReportsAllViewsThatDoNotDivideAtOnce) {
  const std::string message = refusal(8, {.cp = 3, .ep = 5, .vision_ulysses = 6});
  EXPECT_THAT(message, HasSubstr("the parallel degrees do not fit 8 ranks:\n"));
  EXPECT_THAT(message, HasSubstr("parallel.cp 3 does not divide parallel.fsdp_replicate x parallel.fsdp_shard (= dp x cp) = 8"));
  EXPECT_THAT(message, HasSubstr("parallel.ep 5 does not divide"));
  EXPECT_THAT(message, HasSubstr("parallel.vision_ulysses 6 does not divide"));
}

TEST(MeshGroups, JoinTheRanksOfTheirAxis) {
  const Mesh mesh(4, {.tp = 2, .ep = 4});
  run_ranks(4, {}, [&](World& world) {
    Groups groups = make_groups(world, mesh);
    for (const std::string& axis : Mesh::axes()) {
      Group& group = *groups.at(axis);
      EXPECT_EQ(group.name(), axis);
      const at::Tensor ranks =
          group.all_gather(at::tensor({world.rank()}), std::vector<int64_t>(group.size(), 1), "ranks").wait();
      EXPECT_TRUE(at::equal(ranks, at::tensor(mesh.members(axis, world.rank())))) << axis;
    }
  });
}

}  // namespace
}  // namespace hyperparallel::dist
