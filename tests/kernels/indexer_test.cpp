#include "kernels/indexer/dense_loss.h"
#include "kernels/indexer/loss.h"
#include "kernels/indexer/op.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "support/tensors.h"

namespace hyperparallel::kernels {
namespace {

using namespace hyperparallel::test;

// Documents of these lengths with groups of `ratio` tokens.
struct Layout {
  std::vector<int64_t> lengths;
  int64_t ratio;
  std::vector<int64_t> first, count;
  int64_t groups = 0, tokens = 0;

  Layout(std::vector<int64_t> lengths_of, int64_t ratio_of) : lengths(std::move(lengths_of)), ratio(ratio_of) {
    for (int64_t length : lengths) {
      for (int64_t t = 0; t < length; ++t) first.push_back(groups), count.push_back((t + 1) / ratio);
      groups += length / ratio, tokens += length;
    }
  }
};

// Small integers: every product and sum is exact in FP32 in any order, and equal scores are common.
at::Tensor small_integers(at::IntArrayRef sizes, const std::string& name) {
  return at::round(normal(sizes, name, at::kFloat));
}

struct IndexProblem {
  Layout layout;
  IndexQueries queries;
  at::Tensor keys, scores;

  explicit IndexProblem(Layout of) : layout(std::move(of)) {
    queries = {small_integers({layout.tokens, 4, 16}, "q"), small_integers({layout.tokens, 4}, "w"), integers(layout.first),
               integers(layout.count)};
    keys = small_integers({layout.groups, 16}, "k");
    scores = index_scores(queries, keys);
  }
};

// All implementations; with the scores of halves of the heads, which a sum over ranks joins, as twice the half here.
struct Ways {
  std::string name;
  IndexQueries queries;
  Implementation how;
};
std::vector<Ways> all_ways(const IndexQueries& queries) {
  IndexQueries halved = queries;
  halved.weights = queries.weights / 2;
  halved.heads = queries.q.size(1);
  halved.sum = [](const at::Tensor& scores) { return scores * 2; };
  return {{"reference", queries, Implementation::kReference},
          {"tiles", queries, Implementation::kMega},
          {"reference with sums", halved, Implementation::kReference},
          {"tiles with sums", halved, Implementation::kMega}};
}

using GroupSets = std::vector<std::set<int64_t>>;

// The best `k` of `ids` by score, the smaller first among equals.
std::set<int64_t> best_of(std::vector<int64_t> ids, const std::function<double(int64_t)>& score, int64_t k) {
  std::stable_sort(ids.begin(), ids.end(), [&](int64_t a, int64_t b) { return score(a) > score(b); });
  ids.resize(std::min<size_t>(ids.size(), k));
  return {ids.begin(), ids.end()};
}

double score_of(const IndexProblem& p, int64_t t, int64_t g) {
  return p.scores.const_data_ptr<float>()[t * p.layout.groups + g];
}

GroupSets brute_topk(const IndexProblem& p, int64_t k, const GroupSets* blocks, int64_t block_size) {
  GroupSets choice;
  for (int64_t t = 0; t < p.layout.tokens; ++t) {
    std::vector<int64_t> visible;
    for (int64_t g = 0; g < p.layout.count[t]; ++g) {
      if (!blocks || (*blocks)[t].contains(g / block_size)) visible.push_back(p.layout.first[t] + g);
    }
    choice.push_back(best_of(visible, [&](int64_t g) { return score_of(p, t, g); }, k));
  }
  return choice;
}

GroupSets brute_candidates(const IndexProblem& p, int64_t keep, int64_t block_size) {
  GroupSets choice;
  for (int64_t t = 0; t < p.layout.tokens; ++t) {
    const int64_t count = p.layout.count[t];
    if (count == 0) {
      choice.push_back({});
      continue;
    }
    const int64_t newest = (count - 1) / block_size;
    std::vector<int64_t> others(newest);
    std::iota(others.begin(), others.end(), 0);
    std::set<int64_t> kept = best_of(
        others,
        [&](int64_t b) {
          double best = -1e30;
          for (int64_t g = b * block_size; g < std::min((b + 1) * block_size, count); ++g)
            best = std::max(best, score_of(p, t, p.layout.first[t] + g));
          return best;
        },
        keep - 1);
    kept.insert(newest);
    choice.push_back(kept);
  }
  return choice;
}

// Rows ascending, then -1.
void expect_rows(const at::Tensor& ours, const GroupSets& expected, const std::string& what) {
  ASSERT_EQ(ours.size(0), static_cast<int64_t>(expected.size()));
  EXPECT_EQ(ours.scalar_type(), at::kInt);
  for (int64_t t = 0; t < ours.size(0); ++t) {
    std::vector<int64_t> row(expected[t].begin(), expected[t].end()), found;
    row.resize(ours.size(1), -1);
    const int32_t* data = ours.const_data_ptr<int32_t>() + t * ours.size(1);
    found.assign(data, data + ours.size(1));
    EXPECT_EQ(found, row) << what << ", token " << t;
  }
}

std::vector<Layout> layouts() {
  return {{{1}, 2}, {{29}, 2}, {{13, 1, 11}, 1}, {{5, 17}, 3}, {{0, 3}, 4}, {{}, 1}};
}

TEST(Indexer, ScoresEqualAPlainLoop) {
  const IndexProblem p{{{9}, 2}};
  for (int64_t t = 0; t < 9; ++t) {
    for (int64_t g = 0; g < 4; ++g) {
      double sum = 0;
      for (int64_t h = 0; h < 4; ++h) {
        const double dot = (p.queries.q[t][h] * p.keys[g]).sum().item<double>();
        sum += std::max(dot, 0.0) * p.queries.weights[t][h].item<double>() / 4 / 2;  // 16^-0.5, 4^-0.5
      }
      EXPECT_EQ(score_of(p, t, g), sum);
    }
  }
}

TEST(Indexer, TopkEqualsBruteForceWithTiesInChunksOfEverySize) {
  for (const Layout& layout : layouts()) {
    const IndexProblem p(layout);
    for (int64_t k : {1, 5, 64}) {
      const GroupSets expected = brute_topk(p, k, nullptr, 1);
      for (int64_t chunk : {1, 100, 1 << 20}) {
        for (const Ways& ways : all_ways(p.queries))
          expect_rows(choose_groups(ways.queries, p.keys, k, {}, {}, chunk, ways.how).topk, expected,
                      ways.name + ", chunk " + std::to_string(chunk));
      }
    }
  }
}

TEST(Indexer, EqualScoresGiveTheSmallerIndex) {
  IndexProblem p{{{400}, 2}};
  p.queries.q.zero_();  // every head rectified: all scores are 0
  for (const Ways& ways : all_ways(p.queries)) {
    const at::Tensor topk = choose_groups(ways.queries, p.keys, 3, {}, {}, 1 << 20, ways.how).topk;
    EXPECT_TRUE(at::equal(topk[399], at::tensor({0, 1, 2}, at::kInt))) << ways.name;
    EXPECT_TRUE(at::equal(topk[0], at::tensor({-1, -1, -1}, at::kInt))) << ways.name;
  }
}

// Scores of all signs and sizes, documents of several panels, and every type.
TEST(Indexer, TilesChooseAsTheReferenceDoes) {
  for (const at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    for (const auto& [heads, in_all] : {std::pair<int64_t, int64_t>{1, 1}, {3, 4}, {8, 16}, {40, 64}}) {  // an exact scale
      const Layout layout({1, 333, 60, 128}, 1);
      IndexQueries queries{small_integers({layout.tokens, heads, 16}, "q").to(type),
                           small_integers({layout.tokens, heads}, "w").to(type), integers(layout.first), integers(layout.count),
                           in_all};
      const at::Tensor keys = small_integers({layout.groups, 16}, "k").to(type);
      for (const CandidateOptions& keep : {CandidateOptions{}, CandidateOptions{5, 7}, CandidateOptions{3, 100}}) {
        const auto chosen = [&](const at::Tensor& pool, Implementation how) {
          return choose_groups(queries, keys, 20, keep, pool, 1 << 20, how);
        };
        const IndexChoice expected = chosen({}, Implementation::kReference), choice = chosen({}, Implementation::kMega);
        EXPECT_SAME_BITS(choice.topk, expected.topk);
        if (keep.blocks == 0) continue;
        EXPECT_SAME_BITS(choice.candidates, expected.candidates);
        EXPECT_SAME_BITS(chosen(choice.candidates, Implementation::kMega).topk,
                         chosen(choice.candidates, Implementation::kReference).topk);
      }
    }
  }
}

TEST(Indexer, NoTokensAndNoGroups) {
  for (const int64_t tokens : {0, 5}) {
    const IndexQueries queries{at::ones({tokens, 2, 4}), at::ones({tokens, 2}), at::zeros({tokens}, at::kLong),
                               at::zeros({tokens}, at::kLong)};
    for (const int64_t k : {0, 3}) {
      const IndexChoice choice = choose_groups(queries, at::empty({0, 4}), k, {2, 4}, {}, 100);
      EXPECT_TRUE(at::equal(choice.topk, at::full({tokens, k}, -1, at::kInt)));
      EXPECT_TRUE(at::equal(choice.candidates, at::full({tokens, 2}, -1, at::kInt)));
    }
  }
}

TEST(Indexer, CandidatesKeepTheNewestBlockAndRestrictLaterChoices) {
  for (const Layout& layout : layouts()) {
    const IndexProblem p(layout);
    for (int64_t block_size : {1, 4}) {
      for (int64_t keep : {1, 2, 50}) {
        const GroupSets blocks = brute_candidates(p, keep, block_size), topk = brute_topk(p, 3, nullptr, 1),
                        pooled = brute_topk(p, 3, &blocks, block_size);
        for (int64_t chunk : {100, 1 << 20}) {
          for (const Ways& ways : all_ways(p.queries)) {
            const IndexChoice choice = choose_groups(ways.queries, p.keys, 3, {keep, block_size}, {}, chunk, ways.how);
            expect_rows(choice.candidates, blocks, ways.name + ", candidates");
            expect_rows(choice.topk, topk, ways.name + ", the source's own choice");
            expect_rows(choose_groups(ways.queries, p.keys, 3, {keep, block_size}, choice.candidates, chunk, ways.how).topk,
                        pooled, ways.name + ", pooled choice");
          }
        }
      }
    }
  }
}

TEST(Indexer, ChoicesDoNotDependOnTheThreadCountNorOnStrides) {
  const IndexProblem p{{{61, 34}, 2}};
  const auto run = [&] { return choose_groups(p.queries, p.keys, 5, {2, 4}, {}, 500).topk; };
  EXPECT_SAME_BITS(with_threads(1, run), with_threads(2, run));
  IndexQueries strided_queries = p.queries;
  strided_queries.q = strided(p.queries.q);
  strided_queries.weights = strided(p.queries.weights);
  EXPECT_SAME_BITS(choose_groups(strided_queries, strided(p.keys), 5, {2, 4}, {}, 500).topk, run());
}

// The loss over all visible groups, against autograd on whole matrices; and against the sparse loss of all of them chosen.
TEST(DenseIndexerLoss, ValueAndGradientsEqualThePlainOneInAnyChunks) {
  for (const auto& lengths : {std::vector<int64_t>{13}, {1}, {7, 2, 12}, {1, 1}}) {
    const Layout layout(lengths, 2);
    const int64_t heads = 3, d = 5, index_heads = 4, index_d = 6;
    std::vector<int64_t> starts;
    for (int64_t length : lengths) starts.insert(starts.end(), length, static_cast<int64_t>(starts.size()));
    const at::Tensor counted = at::arange(layout.tokens).remainder(5).ne(3);
    const Tensors inputs{normal({layout.tokens, index_heads, index_d}, "iq"), normal({layout.tokens, index_heads}, "iw"),
                         normal({layout.groups, index_d}, "ik")};
    for (const bool windowed : {false, true}) {
      const DenseTeacher teacher{normal({layout.tokens, heads, d}, "q"),
                                 normal({layout.tokens, d}, "window"),
                                 normal({layout.groups, d}, "compressed"),
                                 normal({heads}, "sink"),
                                 at::arange(layout.tokens),
                                 integers(starts),
                                 {4, 5},
                                 windowed};
      const auto ours = [&](const Tensors& x) {
        return dense_indexer_loss({x[0], x[1], integers(layout.first), integers(layout.count)}, x[2], teacher, counted);
      };
      const auto plain = [&](const Tensors& x) {
        std::vector<int64_t> chosen;
        int64_t most = 0;
        for (int64_t count : layout.count) most = std::max(most, count);
        for (int64_t t = 0; t < layout.tokens; ++t) {
          for (int64_t i = 0; i < most; ++i) chosen.push_back(i < layout.count[t] ? layout.first[t] + i : -1);
        }
        const at::Tensor topk = integers(chosen).view({layout.tokens, most}).to(at::kInt);
        const at::Tensor attention = chosen_attention(teacher.q, teacher.window_kv, teacher.compressed_kv, topk, teacher.sink,
                                                      teacher.row, teacher.start, teacher.shape, windowed);
        const IndexQueries queries{x[0], x[1], {}, {}};
        return (indexer_loss(chosen_scores(queries, x[2], topk, 7), attention, topk) * counted).sum();
      };
      EXPECT_CLOSE(ours(inputs), plain(inputs), 1e-12);
      const at::Tensor cotangent = at::full({}, 0.7, at::kDouble);
      const Tensors own = gradients(ours, inputs, cotangent);
      if (layout.groups == 0) {
        for (const at::Tensor& gradient : own) EXPECT_EQ(gradient.abs().sum().item<double>(), 0);
        continue;
      }
      const Tensors derived = gradients(plain, inputs, cotangent);
      for (size_t i = 0; i < own.size(); ++i) EXPECT_CLOSE(own[i], derived[i], 1e-11) << i;
      expect_finite_differences(ours, inputs);
    }
  }
}

}  // namespace
}  // namespace hyperparallel::kernels
