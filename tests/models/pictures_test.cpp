// Pictures over ranks: all ranks' plans, carried out on numbers instead of features.
#include "models/deepseek_v41/pictures.h"

#include <gmock/gmock.h>

#include <numeric>
#include <set>

#include "models/adapter/shards.h"

namespace hyperparallel::models::deepseek_v41 {
namespace {

using testing::ElementsAre;

TEST(SpreadPictures, GivesTheCostliestFirstToTheLeastLoaded) {
  const std::vector<std::pair<int64_t, int64_t>> home(5, {0, 0});
  EXPECT_THAT(spread_pictures({3, 10, 4, 2, 1}, home, 2), ElementsAre(ElementsAre(1), ElementsAre(0, 2, 3, 4)));
  EXPECT_THAT(spread_pictures({}, {}, 3), ElementsAre(ElementsAre(), ElementsAre(), ElementsAre()));
  EXPECT_THAT(spread_pictures({7}, {{0, 2}}, 3), ElementsAre(ElementsAre(0), ElementsAre(), ElementsAre()));
}

TEST(SpreadPictures, LeavesEqualPicturesWhereTheyAre) {
  EXPECT_THAT(spread_pictures({5, 5, 5, 5}, {{3, 3}, {1, 1}, {0, 0}, {2, 2}}, 4),
              ElementsAre(ElementsAre(2), ElementsAre(1), ElementsAre(3), ElementsAre(0)));
}

TEST(SpreadPictures, IsWithinAThirdOfTheBest) {
  std::vector<int64_t> cost;
  for (int64_t i = 0; i < 1000; ++i) cost.push_back(1 + i * i * 7919 % 5003);
  const int64_t groups = 64, total = std::accumulate(cost.begin(), cost.end(), int64_t{0});
  const auto spread = spread_pictures(cost, std::vector<std::pair<int64_t, int64_t>>(cost.size(), {0, 0}), groups);
  for (const auto& pictures : spread) {
    int64_t work = 0;
    for (int64_t picture : pictures) work += cost[picture];
    EXPECT_LE(static_cast<double>(work), 4.0 / 3 * static_cast<double>(total) / groups);
  }
}

struct Case {
  int64_t world;
  dist::MeshDegrees degrees;
  bool balanced = false;
};
const std::vector<Case> kCases = {
    {1, {.vision_ulysses = 1}},
    {4, {.vision_ulysses = 1}},
    {2, {.tp = 2}},
    {6, {.cp = 3, .tp = 2, .vision_ulysses = 3}},
    {8, {.cp = 2, .tp = 2, .vision_ulysses = 8}, true},
    {12, {.cp = 3, .tp = 2, .vision_ulysses = 4}},  // groups across micro-batches
    {12, {.cp = 2, .tp = 1, .vision_ulysses = 6}, true},
};

// Grids of each data-parallel rank's micro-batch. The last ones have none.
std::vector<std::vector<std::pair<int64_t, int64_t>>> grids(bool some) {
  if (!some) return std::vector<std::vector<std::pair<int64_t, int64_t>>>(12);
  return {{{24, 24}, {1, 1}, {5, 7}}, {{2, 30}, {6, 9}}, {}, {{3, 3}, {3, 3}, {4, 1}, {13, 2}}, {{1, 4}}, {}, {{9, 9}}};
}

BatchOutline outline_of(const std::vector<std::pair<int64_t, int64_t>>& grids) {
  std::vector<int64_t> flat, starts;
  int64_t token = 2;
  for (const auto& [rows, columns] : grids) {
    flat.insert(flat.end(), {rows, columns});
    starts.push_back(token);
    token += (rows + 2) / 3 * ((columns + 2) / 3 + 1) + 2 + 3;
  }
  return {token, tensor_of(flat).view({-1, 2}), tensor_of(starts)};
}

// Everything that moves, as numbers: patch `p` of data-parallel rank `d` is 10000 d + p.
class Simulation {
 public:
  explicit Simulation(const Case& layout, bool some_pictures = true) {
    int32_t next = 0;
    for (engine::ValueId* id :
         {&in.patches, &in.patch_send_rows, &in.patch_receive_rows, &in.patch_rows, &in.patch_columns, &in.image_patches,
          &in.patch_parts, &in.head_send_rows, &in.head_receive_rows, &in.neighbours.send_index, &in.neighbours.send_rows,
          &in.neighbours.receive_rows, &in.unshuffle, &in.span_source, &in.spans.send_index, &in.spans.send_rows,
          &in.spans.receive_rows, &in.span_index}) {
      id->index = next++;
    }
    config.hidden_size = 36;
    config.num_attention_heads = 3;
    for (int64_t rank = 0; rank < layout.world; ++rank) {
      engine::Layout of_rank;
      of_rank.mesh = dist::Mesh(layout.world, layout.degrees);
      of_rank.rank = static_cast<int>(rank);
      of_rank.balanced = layout.balanced;
      layouts.push_back(of_rank);
    }
    const int dp = layouts[0].size("dp");
    for (int d = 0; d < dp; ++d) outlines.push_back(outline_of(grids(some_pictures)[d]));
    for (const engine::Layout& of_rank : layouts) {
      ModelBatch batch;
      const int own = of_rank.coordinate("dp");
      batch.ids = at::zeros({outlines[own].tokens}, at::kLong);
      batch.grids = outlines[own].grids;
      batch.image_starts = outlines[own].image_starts;
      batch.patches = at::arange(batch.grids.prod(1).sum().item<int64_t>(), at::kFloat).unsqueeze(1) + 10000 * own;
      if (dp > 1) batch.outlines = outlines;
      const Pictures pictures(config, of_rank, batch);
      maps.emplace_back();
      pictures.add_tower(in, at::kFloat, maps.back());
      pictures.add_spans(in, maps.back());
    }
  }

  const at::Tensor& get(int64_t rank, engine::ValueId id) const { return maps[rank].at(id.index); }
  std::vector<int64_t> list(int64_t rank, engine::ValueId id) const {
    const at::Tensor tensor = get(rank, id).reshape({-1}).contiguous();
    return {tensor.const_data_ptr<int64_t>(), tensor.const_data_ptr<int64_t>() + tensor.numel()};
  }

  // What every rank receives in an all-to-all over groups of `size` consecutive ranks. Both sides must agree on all counts.
  std::vector<std::vector<int64_t>> move(const std::vector<std::vector<int64_t>>& sent, int64_t size, engine::ValueId send_rows,
                                         engine::ValueId receive_rows) const {
    std::vector<std::vector<int64_t>> received(sent.size());
    for (int64_t to = 0; to < static_cast<int64_t>(sent.size()); ++to) {
      const int64_t first = to / size * size;
      for (int64_t from = first; from < first + size; ++from) {
        const std::vector<int64_t> rows = list(from, send_rows);
        EXPECT_EQ(rows.at(to - first), list(to, receive_rows).at(from - first)) << from << " to " << to;
        EXPECT_EQ(std::accumulate(rows.begin(), rows.end(), int64_t{0}), static_cast<int64_t>(sent[from].size()));
        const auto begin = sent[from].begin() + std::accumulate(rows.begin(), rows.begin() + to - first, int64_t{0});
        received[to].insert(received[to].end(), begin, begin + rows[to - first]);
      }
    }
    return received;
  }

  std::vector<std::vector<int64_t>> patches() const {
    std::vector<std::vector<int64_t>> sent;
    for (size_t rank = 0; rank < maps.size(); ++rank) {
      const at::Tensor patches = get(rank, in.patches).flatten().to(at::kLong);
      sent.emplace_back(patches.const_data_ptr<int64_t>(), patches.const_data_ptr<int64_t>() + patches.numel());
    }
    return move(sent, layouts[0].size("stage"), in.patch_send_rows, in.patch_receive_rows);
  }

  ModelInputs in;
  VisionConfig config;
  std::vector<engine::Layout> layouts;
  std::vector<BatchOutline> outlines;
  std::vector<engine::ValueMap> maps;
};

TEST(Pictures, EveryPatchIsComputedOnceInEvenParts) {
  for (const Case& layout : kCases) {
    const Simulation all(layout);
    const auto patches = all.patches();
    std::multiset<int64_t> found, expected;
    for (size_t d = 0; d < all.outlines.size(); ++d) {
      const int64_t count = all.outlines[d].grids.prod(1).sum().item<int64_t>();
      for (int64_t p = 0; p < count; ++p) expected.insert(static_cast<int64_t>(d) * 10000 + p);
    }
    const int64_t members = all.layouts[0].size("vision");
    for (size_t rank = 0; rank < patches.size(); ++rank) {
      found.insert(patches[rank].begin(), patches[rank].end());
      const std::vector<int64_t> parts = all.list(rank, all.in.patch_parts), images = all.list(rank, all.in.image_patches);
      const int64_t total = std::accumulate(images.begin(), images.end(), int64_t{0});
      EXPECT_EQ(parts, engine::even_parts(total, members));
      EXPECT_EQ(static_cast<int64_t>(patches[rank].size()), parts[rank % members]);
      EXPECT_EQ(all.get(rank, all.in.patch_rows).size(0), parts[rank % members]);
    }
    EXPECT_EQ(found, expected);
  }
}

TEST(Pictures, RanksAgreeOnTheHeadsThatGoBetweenThem) {
  for (const Case& layout : kCases) {
    const Simulation all(layout);
    std::vector<std::vector<int64_t>> sent;  // one number a row: rank, head, patch
    const int64_t members = all.layouts[0].size("vision");
    for (size_t rank = 0; rank < all.maps.size(); ++rank) {
      sent.emplace_back();
      for (int64_t head = 0; head < 3; ++head) {
        for (int64_t p = 0; p < all.list(rank, all.in.patch_parts)[rank % members]; ++p)
          sent.back().push_back(static_cast<int64_t>(rank) * 100000 + head * 10000 + p);
      }
    }
    const auto received = all.move(sent, members, all.in.head_send_rows, all.in.head_receive_rows);
    EXPECT_EQ(all.move(received, members, all.in.head_receive_rows, all.in.head_send_rows).size(), sent.size());
    for (size_t rank = 0; rank < received.size(); ++rank) {
      const int64_t first = engine::part_begin(3, members, static_cast<int64_t>(rank) % members),
                    last = engine::part_begin(3, members, static_cast<int64_t>(rank) % members + 1);
      for (int64_t row : received[rank]) EXPECT_TRUE(row / 10000 % 10 >= first && row / 10000 % 10 < last);
    }
  }
}

// What a span token is made of, as a number: 1 START, 2 NEW_LINE, 3 END, or 4 + the nine patches' numbers mixed.
constexpr int64_t kStart = 1, kNewLine = 2, kEnd = 3;
int64_t mix(const std::vector<int64_t>& window) {
  int64_t number = 17;
  for (int64_t patch : window) number = (number * 31 + patch + 2) % 1000003;
  return 4 + number;
}

std::vector<std::vector<int64_t>> made_spans(const Simulation& all) {
  const auto patches = all.patches();
  std::vector<std::vector<int64_t>> sent, made;
  for (size_t rank = 0; rank < patches.size(); ++rank) {
    sent.emplace_back();
    for (int64_t row : all.list(rank, all.in.neighbours.send_index)) sent.back().push_back(patches[rank].at(row));
  }
  const auto neighbours =
      all.move(sent, all.layouts[0].size("vision"), all.in.neighbours.send_rows, all.in.neighbours.receive_rows);
  for (size_t rank = 0; rank < patches.size(); ++rank) {
    std::vector<int64_t> rows = patches[rank];
    rows.insert(rows.end(), neighbours[rank].begin(), neighbours[rank].end());
    const std::vector<int64_t> unshuffle = all.list(rank, all.in.unshuffle);
    made.emplace_back();
    for (int64_t source : all.list(rank, all.in.span_source)) {
      std::vector<int64_t> window;
      for (int64_t k = 0; source >= 3 && k < 9; ++k) {
        const int64_t row = unshuffle.at((source - 3) * 9 + k);
        window.push_back(row < 0 ? -1 : rows.at(row));
      }
      made.back().push_back(source == 0 ? kStart : source == 1 ? kNewLine : source == 2 ? kEnd : mix(window));
    }
  }
  return made;
}

// What each token of a data-parallel rank's micro-batch should receive; 0: nothing.
std::vector<int64_t> expected_spans(const BatchOutline& outline, int64_t dp_rank) {
  std::vector<int64_t> tokens(outline.tokens, 0);
  int64_t patch = dp_rank * 10000;
  for (int64_t i = 0; i < outline.grids.size(0); ++i) {
    const int64_t rows = outline.grids[i][0].item<int64_t>(), columns = outline.grids[i][1].item<int64_t>();
    int64_t token = outline.image_starts[i].item<int64_t>();
    tokens[token++] = kStart;
    for (int64_t top = 0; top < rows; top += 3) {
      for (int64_t left = 0; left < columns; left += 3) {
        std::vector<int64_t> window;
        for (int64_t k = 0; k < 9; ++k) {
          const int64_t y = top + k / 3, x = left + k % 3;
          window.push_back(y < rows && x < columns ? patch + y * columns + x : -1);
        }
        tokens[token++] = mix(window);
      }
      tokens[token++] = kNewLine;
    }
    tokens[token++] = kEnd;
    patch += rows * columns;
  }
  return tokens;
}

TEST(Pictures, SpansReachTheTokensOfTheirPictures) {
  for (const Case& layout : kCases) {
    for (const bool some : {true, false}) {
      const Simulation all(layout, some);
      const auto made = made_spans(all);
      std::vector<std::vector<int64_t>> sent;
      for (size_t rank = 0; rank < made.size(); ++rank) {
        sent.emplace_back();
        for (int64_t row : all.list(rank, all.in.spans.send_index)) sent.back().push_back(made[rank].at(row));
        EXPECT_EQ(sent[rank].size(), made[rank].size());
      }
      const auto received = all.move(sent, all.layouts[0].size("stage"), all.in.spans.send_rows, all.in.spans.receive_rows);
      // Each token's sum over tp, as the embedding takes it.
      std::vector<std::vector<int64_t>> found;
      for (const BatchOutline& outline : all.outlines) found.emplace_back(outline.tokens, 0);
      for (size_t rank = 0; rank < received.size(); ++rank) {
        const engine::Layout& of_rank = all.layouts[rank];
        const TokenShards shards(all.outlines[of_rank.coordinate("dp")].tokens, of_rank);
        const std::vector<int64_t> index = all.list(rank, all.in.span_index), &own = shards.tokens(of_rank.coordinate("cp"));
        ASSERT_EQ(index.size(), own.size());
        for (size_t row = 0; row < own.size(); ++row) {
          if (index[row] >= 0) found[of_rank.coordinate("dp")][own[row]] += received[rank].at(index[row]);
        }
      }
      for (size_t d = 0; d < found.size(); ++d) EXPECT_EQ(found[d], expected_spans(all.outlines[d], static_cast<int64_t>(d)));
    }
  }
}

}  // namespace
}  // namespace hyperparallel::models::deepseek_v41
