#include "kernels/moe/mega.h"
#include "kernels/moe/op.h"

#include <cmath>
#include <numeric>

#include "dist/thread_comm.h"
#include "support/tensors.h"

namespace hyperparallel::kernels {
namespace {

using namespace hyperparallel::test;

TEST(RouterScores, AreTheRootOfSoftplus) {
  const at::Tensor logits = normal({3, 5}, "logits", at::kDouble, 3);
  for (double temperature : {1.0, 1.25}) {
    const at::Tensor scores = router_scores(logits, temperature);
    for (int64_t i = 0; i < 15; ++i) {
      const double x = logits.flatten()[i].item<double>() / temperature;
      EXPECT_NEAR(scores.flatten()[i].item<double>(), std::sqrt(std::log1p(std::exp(x))), 1e-9);
    }
    expect_finite_differences([&](const Tensors& x) { return router_scores(x[0], temperature); }, {logits});
  }
}

TEST(ChooseExperts, TheSmallerIdWinsAmongEqualsAndEachModalityHasItsBias) {
  const at::Tensor scores = at::tensor({1., 2., 2., 1., 2.}, at::kDouble).expand({3, 5});
  const at::Tensor none = at::zeros({5}, at::kDouble), bias_vl = at::tensor({5., 0., 0., 4., 0.}, at::kDouble);
  const at::Tensor chosen = choose_experts(scores, none, bias_vl, at::tensor({0, 1, 0}).to(at::kBool), 2);
  EXPECT_TRUE(at::equal(chosen, integers({1, 2, 0, 3, 1, 2}).view({3, 2})));
  EXPECT_TRUE(at::equal(choose_experts(scores, none, none, at::zeros({3}, at::kBool), 5), at::arange(5).expand({3, 5})));
  EXPECT_EQ(choose_experts(at::ones({0, 5}), at::zeros({5}), at::zeros({5}), at::zeros({0}, at::kBool), 2).sizes(),
            at::IntArrayRef({0, 2}));
}

TEST(ExpertWeights, AreTheChosenScoresNormalisedAndScaled) {
  const at::Tensor scores = normal({4, 6}, "scores").abs(), ids = integers({0, 5, 1, 2, 3, 4, 0, 2}).view({4, 2});
  const at::Tensor raw = scores.gather(1, ids);
  EXPECT_CLOSE(expert_weights(scores, ids, false, 2.5), raw * 2.5, 1e-15);
  EXPECT_CLOSE(expert_weights(scores, ids, true, 2.5), raw / raw.sum(1, true) * 2.5, 1e-15);
  EXPECT_CLOSE(expert_weights(scores, ids.narrow(1, 0, 1), true, 1.0), raw.narrow(1, 0, 1),
               1e-15);  // one choice is not normalised
  expect_finite_differences([&](const Tensors& x) { return expert_weights(x[0], ids, true, 2.5); }, {scores});
}

TEST(SortRows, GivesEveryChoiceOncePerExpertInTokenOrder) {
  const at::Tensor ids = integers({1, 4, 1, 3, 0, 4, 1, 4}).view({4, 2});
  const RowOrder rows = sort_rows(strided(ids), 6);
  EXPECT_TRUE(at::equal(rows.offsets, integers({0, 1, 4, 4, 5, 8, 8})));
  EXPECT_TRUE(at::equal(rows.order, integers({4, 0, 2, 6, 3, 1, 5, 7})));
  const RowOrder empty = sort_rows(at::empty({0, 2}, at::kLong), 3);
  EXPECT_TRUE(at::equal(empty.offsets, integers({0, 0, 0, 0})));
  EXPECT_EQ(empty.order.numel(), 0);
}

TEST(DispatchAndCombine, EqualPlainIndexingAndTransposeEachOther) {
  for (int64_t tokens : {0, 1, 7}) {
    const int64_t k = 3, width = 5;
    at::Tensor ids = at::empty({tokens, k}, at::kLong);
    for (int64_t t = 0; t < tokens; ++t) ids[t] = integers({t % 2, 2 + t % 3, 6});
    const at::Tensor order = sort_rows(ids, 8).order, x = normal({tokens, width}, "x"),
                     rows = normal({tokens * k, width}, "rows");
    const at::Tensor sent = dispatch_rows(x, order, k), combined = combine_rows(strided(rows), order, k);
    at::Tensor expected = at::zeros({tokens, width}, at::kDouble);
    for (int64_t r = 0; r < tokens * k; ++r) {
      const int64_t token = order[r].item<int64_t>() / k;
      EXPECT_SAME_BITS(sent[r], x[token]);
      expected[token] += rows[r];
    }
    EXPECT_CLOSE(combined, expected, 1e-14);
    EXPECT_CLOSE(gradients([&](const Tensors& in) { return dispatch_rows(in[0], order, k); }, {x}, rows)[0], expected, 1e-14);
    EXPECT_CLOSE(gradients([&](const Tensors& in) { return combine_rows(in[0], order, k); }, {rows}, x)[0], sent, 1e-14);
  }
}

TEST(DispatchAndCombine, Bfloat16RowsSumInFloat) {
  const at::Tensor order = at::arange(3), rows = at::tensor({1.0f, 0x1p-8f, 0x1p-8f}).to(at::kBFloat16).view({3, 1});
  const at::Tensor sum = combine_rows(rows, order, 3);
  EXPECT_EQ(sum.scalar_type(), at::kFloat);
  EXPECT_EQ(sum.item<float>(), 1.0f + 0x1p-7f);
}

TEST(ClampedSwiglu, EqualsAPlainLoopOnBothSidesOfEveryClamp) {
  const double limit = 1.5;
  const at::Tensor gate = at::tensor({-9., -1.6, -0.3, 0.4, 1.4, 1.6, 7.}, at::kDouble).view({1, 7}).expand({7, 7}),
                   up = gate.t(), weight = normal({7}, "w");
  for (double l : {limit, 0.0}) {
    const at::Tensor y = clamped_swiglu(gate, up, weight, l);
    for (int64_t i = 0; i < 7; ++i) {
      for (int64_t j = 0; j < 7; ++j) {
        double g = gate[i][j].item<double>(), u = up[i][j].item<double>();
        if (l > 0) g = std::min(g, l), u = std::clamp(u, -l, l);
        EXPECT_NEAR(y[i][j].item<double>(), g / (1 + std::exp(-g)) * u * weight[i].item<double>(), 1e-13);
      }
    }
    expect_finite_differences([&](const Tensors& x) { return clamped_swiglu(x[0], x[1], x[2], l); },
                              {gate.contiguous(), up.contiguous(), weight});
  }
  const at::Tensor cotangent = at::ones({7, 7}, at::kDouble);
  const Tensors g = gradients([&](const Tensors& x) { return clamped_swiglu(x[0], x[1], {}, limit); },
                              {gate.contiguous(), up.contiguous()}, cotangent);
  EXPECT_TRUE(at::equal(g[0].eq(0), gate.gt(limit)));  // above the limit nothing comes back; far below it still does
  EXPECT_TRUE(at::equal(g[1].eq(0), up.abs().gt(limit)));
}

TEST(ClampedSwiglu, Bfloat16ComputesInFloatAndRoundsOnce) {
  const at::Tensor gate = normal({5, 3}, "g", at::kBFloat16), up = normal({5, 3}, "u", at::kBFloat16),
                   weight = normal({5}, "w", at::kFloat);
  EXPECT_SAME_BITS(clamped_swiglu(gate, up, weight, 2),
                   clamped_swiglu(gate.to(at::kFloat), up.to(at::kFloat), weight, 2).to(at::kBFloat16));
  EXPECT_EQ(clamped_swiglu(at::ones({0, 3}), at::ones({0, 3}), at::ones({0}), 2).sizes(), at::IntArrayRef({0, 3}));
}

struct RouterCase {
  int64_t tokens, experts, k;
  bool normalise;
  double temperature;
};
class RouteTest : public ::testing::TestWithParam<RouterCase> {};

// Ids, and scores, weights and the gradient of logits; also where ids are given, as for recomputation.
TEST_P(RouteTest, OnePassEqualsTheComposition) {
  const auto& [tokens, experts, k, normalise, temperature] = GetParam();
  const RouterRule rule{k, temperature, normalise, 1.5};
  const at::Tensor image = (normal({tokens}, "image") > 0);
  for (const auto& [type, tolerance] : {std::pair{at::kDouble, 1e-13}, std::pair{at::kFloat, 3e-6}}) {
    at::Tensor logits = normal({tokens, experts}, "logits", type, 5);
    if (tokens > 0) logits[0][0] = -200, logits[0][1] = 60;  // neither vanishing nor huge scores spoil a gradient
    const at::Tensor bias = normal({experts}, "bias", type, 0.1), bias_vl = normal({experts}, "bias_vl", type, 0.1);
    Routed found[3];
    at::Tensor gradient[3];
    for (int run = 0; run < 3; ++run) {
      const at::Tensor leaf = logits.clone().requires_grad_(true);
      const RouterChoice choice = run == 2 ? RouterChoice{found[0].ids, {}, {}, {}} : RouterChoice{{}, bias, bias_vl, image};
      found[run] = route(leaf, choice, rule, run == 0 ? Implementation::kReference : Implementation::kMega);
      ((found[run].scores * normal({tokens, experts}, "ds", type)).sum() +
       (found[run].weights * normal({tokens, k}, "dw", type)).sum())
          .backward();
      gradient[run] = leaf.grad();
      if (tokens > 0) gradient[run][0][0] = 0;  // the composition has no number there
      EXPECT_TRUE(at::isfinite(gradient[run]).all().item<bool>());
    }
    for (int run = 1; run < 3; ++run) {
      EXPECT_TRUE(at::equal(found[run].ids, found[0].ids));
      if (tokens == 0) continue;
      EXPECT_CLOSE(found[run].scores, found[0].scores, tolerance);
      EXPECT_CLOSE(found[run].weights, found[0].weights, tolerance);
      EXPECT_CLOSE(gradient[run], gradient[0], tolerance * 10);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, RouteTest,
                         ::testing::Values(RouterCase{5, 6, 2, true, 1.0}, RouterCase{300, 17, 4, true, 1.25},
                                           RouterCase{7, 4, 4, false, 1.0}, RouterCase{9, 5, 1, true, 1.0},
                                           RouterCase{0, 4, 2, true, 1.0}, RouterCase{3, 256, 6, true, 1.0}),
                         [](const auto& info) { return "case" + std::to_string(info.index); });

TEST(RouteTest, TheSmallerIdWinsAmongEquals) {
  const at::Tensor none = at::zeros({5}, at::kDouble), logits = at::tensor({1., 2., 2., 1., 2.}, at::kDouble).expand({2, 5});
  const RouterChoice choice{{}, none, at::tensor({0., 0., 0., 9., 0.}, at::kDouble), at::tensor({0, 1}).to(at::kBool)};
  EXPECT_TRUE(at::equal(route(logits, choice, {2, 1, true, 1}, Implementation::kMega).ids, integers({1, 2, 1, 3}).view({2, 2})));
}

struct ExpertCase {
  int64_t tokens, experts, k, d, width;
  bool shared;
  double limit = 1.0;
};

// out, dx, dweights and the gradients of w1, w3, w2, then of the shared expert's; by library operations and autograd.
struct Experts {
  const ExpertCase& of;
  at::ScalarType type, math = type == at::kDouble ? at::kDouble : at::kFloat;
  at::Tensor x = normal({of.tokens, of.d}, "x", type), dout = normal({of.tokens, of.d}, "dout", type);
  // Experts 0 and 2 get most tokens, the last gets none.
  at::Tensor ids =
      (normal({of.tokens, of.k}, "ids").abs() * 1.5).floor().to(at::kLong).clamp_max(std::max<int64_t>(0, of.experts - 2));
  RowOrder rows = sort_rows(ids, of.experts);
  at::Tensor weights = normal({of.tokens * of.k}, "weights", math).abs();
  moe::Experts routed = make(of.experts, "routed"), shared = of.shared ? make(1, "shared") : moe::Experts{};

  moe::Experts make(int64_t experts, const std::string& name) const {
    const double scale = 1 / std::sqrt(static_cast<double>(of.d));
    return {normal({experts, of.width, of.d}, name + "1", type, 2 * scale),
            normal({experts, of.width, of.d}, name + "3", type, 2 * scale),
            normal({experts, of.d, of.width}, name + "2", type, scale)};
  }
  moe::Call call() const {
    return {x,       of.k > 0 ? rows.order : at::Tensor(), rows.offsets, of.k > 0 ? weights : at::Tensor(), of.k, routed, shared,
            of.limit};
  }

  // `start`: what the gradients of weights are added to; NAN: they are unset.
  Tensors mega(double start = NAN) const {
    moe::Kept kept;
    Tensors all{moe::forward(call(), kept)};
    const auto sums = [&](const moe::Experts& like) {
      if (!like.w1.defined()) return moe::ExpertGradients{};
      const auto sum = [&](const at::Tensor& w) { return at::full(w.sizes(), start, math); };
      return moe::ExpertGradients{sum(like.w1), sum(like.w3), sum(like.w2), std::isnan(start)};
    };
    const moe::ExpertGradients d = sums(routed), dshared = sums(shared);
    const moe::Gradients gradients = moe::backward(call(), kept, dout, d, dshared);
    all.insert(all.end(), {gradients.x, gradients.weights, d.w1, d.w3, d.w2});
    if (of.shared) all.insert(all.end(), {dshared.w1, dshared.w3, dshared.w2});
    return all;
  }

  Tensors composed() const {
    Tensors leaves{x, weights, routed.w1, routed.w3, routed.w2};
    if (of.shared) leaves.insert(leaves.end(), {shared.w1, shared.w3, shared.w2});
    for (at::Tensor& leaf : leaves) leaf = leaf.detach().clone().requires_grad_(true);
    const auto mlp = [&](const at::Tensor& in, size_t first, int64_t e, const at::Tensor& row_weights) {
      const at::Tensor g = at::linear(in, leaves[first][e]), u = at::linear(in, leaves[first + 1][e]);
      return at::linear(clamped_swiglu(g, u, row_weights, of.limit), leaves[first + 2][e]);
    };
    const at::Tensor sent = dispatch_rows(leaves[0], rows.order, of.k), row_weights = leaves[1].index_select(0, rows.order);
    Tensors parts;
    for (int64_t e = 0; e < of.experts; ++e) {
      const int64_t first = rows.offsets[e].item<int64_t>(), count = rows.offsets[e + 1].item<int64_t>() - first;
      parts.push_back(mlp(sent.narrow(0, first, count), 2, e, leaves[1].narrow(0, first, count)));
    }
    at::Tensor out = combine_rows(at::cat(parts), rows.order, of.k);
    if (of.shared) out = out + mlp(leaves[0], 5, 0, {}).to(math);
    out = out.to(type);
    out.backward(dout);
    Tensors all{out.detach()};
    for (const at::Tensor& leaf : leaves) all.push_back(leaf.grad().to(leaf.sizes() == x.sizes() ? type : math));
    return all;
  }
};

class ExpertsTest : public ::testing::TestWithParam<ExpertCase> {};

TEST_P(ExpertsTest, EqualLibraryOperationsForwardAndBackward) {
  const std::pair<at::ScalarType, double> types[] = {{at::kDouble, 1e-12}, {at::kFloat, 1e-5}, {at::kBFloat16, 0.02}};
  for (const auto& [type, tolerance] : types) {
    if (!moe::refusal(type, GetParam().d, GetParam().width).empty()) continue;
    const Experts experts{GetParam(), type};
    const Tensors ours = experts.mega(), expected = experts.composed();
    for (size_t i = 0; i < ours.size(); ++i) {
      ASSERT_EQ(ours[i].sizes(), expected[i].sizes()) << i;
      const at::Tensor a = ours[i].to(at::kDouble), b = expected[i].to(at::kDouble);
      EXPECT_LE((a - b).norm().item<double>(), tolerance * (1e-3 + b.norm().item<double>())) << "value " << i << " in " << type;
    }
    at::set_num_threads(3);
    const Tensors again = experts.mega();
    at::set_num_threads(1);
    for (size_t i = 0; i < ours.size(); ++i) EXPECT_SAME_BITS(ours[i], again[i]);
    const Tensors added = experts.mega(/*start=*/2);
    for (size_t i = 3; i < ours.size(); ++i) {
      const at::Tensor difference = added[i] - ours[i] - 2;
      EXPECT_LE(difference.abs().max().item<double>(), 1e-5 * (2 + ours[i].abs().max().item<double>())) << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, ExpertsTest,
                         ::testing::Values(ExpertCase{13, 4, 2, 32, 16, true}, ExpertCase{300, 5, 3, 16, 48, false},
                                           ExpertCase{257, 3, 1, 80, 32, false}, ExpertCase{1, 2, 2, 16, 16, true, 0.0},
                                           ExpertCase{0, 4, 2, 32, 16, true}, ExpertCase{700, 2, 1, 64, 64, true},
                                           ExpertCase{131, 7, 3, 56, 20, true}),
                         [](const auto& info) { return "case" + std::to_string(info.index); });

class TravellingExpertsTest : public ::testing::TestWithParam<std::pair<ExpertCase, int>> {};  // and ranks

// Every rank has tokens of its own and a part of the experts: values, gradients of rows and, over all ranks, of weights equal
// those of one rank with all tokens.
TEST_P(TravellingExpertsTest, EqualOneRank) {
  const auto& [of, ranks] = GetParam();
  for (const auto& [type, tolerance] :
       {std::pair{at::kDouble, 1e-12}, std::pair{at::kFloat, 1e-5}, std::pair{at::kBFloat16, 0.01}}) {
    if (!moe::refusal(type, of.d, of.width).empty()) continue;
    const Experts all{of, type};
    const Tensors expected = all.mega();
    std::vector<int64_t> first_tokens{0}, first_experts{0};
    for (int r = 0; r < ranks; ++r) {
      first_tokens.push_back(r + 1 == ranks ? of.tokens : of.tokens * (r + 1) / (ranks + 1));  // the last has the most
      first_experts.push_back(of.experts * (r + 1) / ranks);
    }
    std::vector<RowOrder> rows;
    at::Tensor counts = at::empty({ranks, of.experts}, at::kLong);
    for (int r = 0; r < ranks; ++r) {
      rows.push_back(sort_rows(all.ids.slice(0, first_tokens[r], first_tokens[r + 1]), of.experts));
      counts[r] = rows[r].offsets.diff();
    }
    at::Tensor by_choice = at::empty_like(all.weights);  // the weights of one rank's rows, by choice
    by_choice.index_copy_(0, all.rows.order, all.weights);
    std::vector<Tensors> found[2];
    std::vector<double> waited(ranks, 0);
    for (const int threads : {1, 2}) {
      std::vector<Tensors>& results = found[threads - 1];
      results.resize(ranks);
      dist::run_ranks(ranks, {.threads = threads}, [&](dist::World& world) {
        std::vector<int> members(ranks);
        std::iota(members.begin(), members.end(), 0);
        const auto group = world.make_group({.name = "ep", .members = members});
        const int r = world.rank();
        const int64_t begin = first_tokens[r], end = first_tokens[r + 1], e = first_experts[r], last = first_experts[r + 1];
        const auto part = [&](const moe::Experts& w) {
          return moe::Experts{w.w1.slice(0, e, last), w.w3.slice(0, e, last), w.w2.slice(0, e, last)};
        };
        const auto zeros = [&](const moe::Experts& w) {
          if (!w.w1.defined()) return moe::ExpertGradients{};
          const auto zero = [&](const at::Tensor& like) { return at::zeros(like.sizes(), all.math); };
          return moe::ExpertGradients{zero(w.w1), zero(w.w3), zero(w.w2)};
        };
        const moe::Call call{all.x.slice(0, begin, end).clone(),  // empty tensors have no address
                             rows[r].order,
                             rows[r].offsets,
                             by_choice.slice(0, begin * of.k, end * of.k).index_select(0, rows[r].order),
                             of.k,
                             part(all.routed),
                             all.shared,
                             of.limit,
                             {group.get(), first_experts, counts.slice(1, e, last), "layer", &waited[r]}};
        moe::Kept kept;
        const at::Tensor out = moe::forward(call, kept);
        const moe::ExpertGradients d = zeros(call.routed), dshared = zeros(all.shared);
        const moe::Gradients gradients = moe::backward(call, kept, all.dout.slice(0, begin, end).clone(), d, dshared);
        at::Tensor dweights = at::empty_like(call.weights);
        dweights.index_copy_(0, rows[r].order, gradients.weights);
        results[r] = {out, gradients.x, dweights, d.w1, d.w3, d.w2, dshared.w1, dshared.w3, dshared.w2};
      });
    }
    const auto joined = [&](size_t value) {
      Tensors parts;
      for (const Tensors& of_rank : found[0]) parts.push_back(of_rank[value]);
      return value < 6 ? at::cat(parts) : at::stack(parts).sum(0);
    };
    at::Tensor dweights = at::empty_like(expected[2]);
    dweights.index_copy_(0, all.rows.order, expected[2]);
    const Tensors one{expected[0], expected[1], dweights, expected[3], expected[4], expected[5]};
    for (size_t i = 0; i < (of.shared ? 9U : 6U); ++i) {
      const at::Tensor a = joined(i).to(at::kDouble), b = (i < 6 ? one[i] : expected[i]).to(at::kDouble);
      EXPECT_LE((a - b).norm().item<double>(), tolerance * (1e-3 + b.norm().item<double>())) << "value " << i << " in " << type;
      for (int r = 0; r < ranks; ++r) EXPECT_SAME_BITS(found[0][r][i], found[1][r][i]);
    }
    for (double seconds : waited) EXPECT_GE(seconds, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Sizes, TravellingExpertsTest,
    ::testing::Values(std::pair{ExpertCase{13, 4, 2, 32, 16, true}, 2}, std::pair{ExpertCase{600, 5, 3, 16, 48, false}, 2},
                      std::pair{ExpertCase{257, 3, 1, 80, 32, true}, 3}, std::pair{ExpertCase{2, 2, 2, 16, 16, true, 0.0}, 2},
                      std::pair{ExpertCase{0, 4, 2, 32, 16, true}, 2}, std::pair{ExpertCase{700, 4, 2, 64, 64, false}, 4}),
    [](const auto& info) { return "case" + std::to_string(info.index); });

TEST(ExpertsTest, OddWidthsAreRefused) {
  EXPECT_THAT(moe::refusal(at::kFloat, 24, 33), ::testing::HasSubstr("24 and 33 are no multiples of 4"));
  EXPECT_THAT(moe::refusal(at::kHalf, 32, 32), ::testing::HasSubstr("Half"));
  const Choice choice = choose(Implementation::kMega, expert_candidates(at::kDouble, 26, 32));
  EXPECT_EQ(choice.taken, Implementation::kReference);
  EXPECT_EQ(choice.passed_over.size(), 1);
  EXPECT_EQ(choose(Implementation::kMega, expert_candidates(at::kDouble, 32, 32)).taken, Implementation::kMega);
  EXPECT_EQ(choose(Implementation::kFused, expert_candidates(at::kDouble, 32, 32)).taken, Implementation::kReference);
}

}  // namespace
}  // namespace hyperparallel::kernels
