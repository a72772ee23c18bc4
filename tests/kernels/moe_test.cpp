#include "kernels/moe/op.h"

#include <cmath>

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

}  // namespace
}  // namespace hyperparallel::kernels
