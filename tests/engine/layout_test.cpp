// Who holds what: parts, placements, and start values that do not depend on the layout.
#include "engine/layout.h"

#include <gmock/gmock.h>

#include <numeric>

#include "engine/parameter.h"

namespace hyperparallel::engine {
namespace {

using testing::ElementsAre;

Layout layout(int ranks, const dist::MeshDegrees& degrees, int rank) {
  Layout result;
  result.mesh = dist::Mesh(ranks, degrees);
  result.rank = rank;
  return result;
}

std::vector<ParameterSpec> specs() {
  const auto spec = [](const char* name, std::vector<int64_t> shape, const char* axis, int64_t dim) {
    ParameterSpec s{name, std::move(shape), ParameterUse::kWeight, false, Initialiser::normal(0.5)};
    s.cut_axis = axis;
    s.cut_dim = dim;
    return s;
  };
  std::vector<ParameterSpec> all = {spec("whole", {7, 5}, "", 0),     spec("column", {11, 3}, "tp", 0),
                                    spec("row", {4, 10}, "tp", 1),    spec("experts", {5, 9, 2}, "ep", 0),
                                    spec("few", {2, 13, 3}, "ep", 0), spec("gain", {3}, "", 0)};
  all.push_back({"state", {6}, ParameterUse::kState, true, Initialiser::fill(2)});
  return all;
}

TEST(EvenParts, DifferByOneAndCoverAll) {
  EXPECT_THAT(even_parts(11, 4), ElementsAre(3, 3, 3, 2));
  EXPECT_THAT(even_parts(2, 4), ElementsAre(1, 1, 0, 0));
  EXPECT_THAT(even_parts(0, 3), ElementsAre(0, 0, 0));
  for (const int64_t total : {0, 1, 5, 7, 97}) {
    for (const int64_t parts : {1, 2, 3, 8}) {
      const auto sizes = even_parts(total, parts);
      for (int64_t i = 0; i <= parts; ++i)
        EXPECT_EQ(part_begin(total, parts, i), std::accumulate(sizes.begin(), sizes.begin() + i, int64_t{0}));
      EXPECT_EQ(part_begin(total, parts, parts), total);
    }
  }
}

// Every element is owned, with the value that one rank starts from, and by one primary rank alone.
TEST(Placement, CoversEveryParameterOnceWithTheSameStart) {
  ParameterStore whole(specs(), at::kFloat, at::kFloat);
  whole.initialise(7);
  const std::pair<int, dist::MeshDegrees> layouts[] = {{2, {.tp = 2}},
                                                       {4, {.ep = 4}},
                                                       {6, {.fsdp_shard = -1, .cp = 3, .tp = 2, .ep = 2}},
                                                       {8, {.fsdp_replicate = 2, .fsdp_shard = 2, .tp = 2, .ep = 4}},
                                                       {12, {.tp = 2, .ep = 3}}};
  for (const auto& [ranks, degrees] : layouts) {
    std::vector<at::Tensor> owners;
    for (const ParameterSpec& spec : specs()) owners.push_back(at::zeros(spec.shape, at::kInt));
    for (int rank = 0; rank < ranks; ++rank) {
      const Layout here = layout(ranks, degrees, rank);
      ParameterStore store(specs(), at::kFloat, at::kFloat, here);
      store.initialise(7);
      for (size_t i = 0; i < specs().size(); ++i) {
        const ParameterId id{static_cast<int32_t>(i)};
        const Box& owned = store.placement(id).owned;
        EXPECT_TRUE(store.master(id).equal(narrow_to(whole.master(id), owned)))
            << specs()[i].name << " on rank " << rank << " of " << ranks;
        if (here.is_primary(specs()[i])) narrow_to(owners[i], owned).add_(1);
      }
    }
    for (size_t i = 0; i < owners.size(); ++i)
      EXPECT_TRUE(owners[i].eq(1).all().item<bool>()) << specs()[i].name << " on " << ranks << " ranks";
  }
}

TEST(Placement, ShardsStackedMatricesInsideWhereTheyAreFewerThanRanks) {
  const Layout here = layout(12, {.tp = 2, .ep = 2}, 0);  // edp 6; experts 3 of 5 here, "few" 1 of 2
  EXPECT_EQ(place(specs()[3], here).shard_dim, 1);
  EXPECT_EQ(place(specs()[4], here).shard_dim, 1);
  EXPECT_EQ(place(specs()[0], here).shard_dim, 0);
  EXPECT_EQ(place(specs()[3], layout(4, {.ep = 2}, 0)).shard_dim, 0);  // edp 2
}

}  // namespace
}  // namespace hyperparallel::engine
