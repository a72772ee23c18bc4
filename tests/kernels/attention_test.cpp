#include "kernels/attention/op.h"

#include <ATen/Parallel.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "support/tensors.h"

namespace hyperparallel::kernels {
namespace {

using namespace hyperparallel::test;

struct AttentionProblem {
  std::vector<int64_t> documents;
  int64_t window, groups, k;
  int64_t heads = 3, d = 5;
  int64_t tokens = 0;
  at::Tensor start, topk, q, window_kv, compressed_kv, sink;

  // topk: `k` places, some of them -1, never one group twice.
  AttentionProblem(std::vector<int64_t> lengths, int64_t window_of, int64_t groups_of, int64_t k_of)
      : documents(std::move(lengths)), window(window_of), groups(groups_of), k(k_of) {
    std::vector<int64_t> starts, chosen;
    for (int64_t length : documents) {
      starts.insert(starts.end(), length, tokens);
      tokens += length;
    }
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t i = 0; i < k; ++i) chosen.push_back((t + i) % 3 == 0 || i >= groups ? -1 : (t * 2 + i) % groups);
    }
    start = integers(starts);
    topk = integers(chosen).view({tokens, k}).to(at::kInt);
    q = normal({tokens, heads, d}, "q");
    window_kv = normal({tokens, d}, "window");
    compressed_kv = normal({groups, d}, "compressed");
    sink = normal({heads}, "sink");
  }

  // chunk 0: fused.
  at::Tensor ours(const Tensors& x, int64_t chunk) const {
    return csa2_attention(x[0], x[1], x[2], topk, x[3], at::arange(tokens), start, shape(chunk));
  }
  AttentionShape shape(int64_t chunk) const { return {window, std::max<int64_t>(1, chunk), chunk == 0}; }
  Tensors inputs() const { return {q, window_kv, compressed_kv, sink}; }

  // Dense: every query against every token and every group, under a mask.
  at::Tensor dense(const Tensors& x) const {
    at::Tensor sees = at::zeros({tokens, tokens + groups}, at::kBool);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t s = 0; s < tokens; ++s) sees[t][s] = s <= t && s > t - window && s >= start[t].item<int64_t>();
      for (int64_t i = 0; i < k; ++i) {
        if (const int64_t g = topk[t][i].item<int64_t>(); g >= 0) sees[t][tokens + g] = true;
      }
    }
    const at::Tensor keys = at::cat({x[1], x[2]});
    at::Tensor logits = at::einsum("thd,kd->thk", {x[0], keys}) / std::sqrt(static_cast<double>(d));
    logits = logits.masked_fill(sees.logical_not().unsqueeze(1), -std::numeric_limits<double>::infinity());
    const at::Tensor p = at::softmax(at::cat({logits, x[3].view({1, heads, 1}).expand({tokens, heads, 1})}, 2), 2);
    return at::einsum("thk,kd->thd", {p.narrow(2, 0, tokens + groups), keys});
  }
};

class Attention : public ::testing::TestWithParam<AttentionProblem> {};

TEST_P(Attention, ForwardAndEveryGradientEqualTheDenseReferenceInAnyChunks) {
  const AttentionProblem& p = GetParam();
  const at::Tensor expected = p.dense(p.inputs()), cotangent = normal(expected.sizes(), "cotangent");
  const Tensors derived = gradients([&](const Tensors& x) { return p.dense(x); }, p.inputs(), cotangent);
  for (int64_t chunk : {0, 1, 7, 128}) {
    const auto f = [&](const Tensors& x) { return p.ours(x, chunk); };
    EXPECT_CLOSE(f(p.inputs()), expected, 1e-13) << chunk;
    const Tensors ours = gradients(f, p.inputs(), cotangent);
    for (size_t i = 0; i < ours.size(); ++i) EXPECT_CLOSE(ours[i], derived[i], 1e-12) << "input " << i << ", chunk " << chunk;
    EXPECT_CLOSE(f({strided(p.q), strided(p.window_kv), strided(p.compressed_kv), p.sink}), expected, 1e-13);
  }
}

TEST_P(Attention, GradientsEqualFiniteDifferences) {
  const AttentionProblem& p = GetParam();
  for (int64_t chunk : {0, 4}) expect_finite_differences([&](const Tensors& x) { return p.ours(x, chunk); }, p.inputs());
}

INSTANTIATE_TEST_SUITE_P(Problems, Attention,
                         ::testing::Values(AttentionProblem({19}, 4, 7, 3), AttentionProblem({1}, 1, 1, 1),
                                           AttentionProblem({5, 1, 13}, 6, 4, 2), AttentionProblem({11, 6}, 64, 5, 5),
                                           AttentionProblem({9}, 3, 4, 0), AttentionProblem({9}, 3, 0, 2),
                                           AttentionProblem({0, 3}, 1, 2, 1), AttentionProblem({}, 4, 3, 2)),
                         [](const auto& info) { return "case" + std::to_string(info.index); });

TEST(AttentionWindow, WithoutGroupsTheWindowAloneIsSeen) {
  const AttentionProblem p({7, 4}, 3, 0, 0);
  const at::Tensor out = csa2_attention(p.q, p.window_kv, {}, {}, p.sink, at::arange(p.tokens), p.start, {p.window, 4});
  EXPECT_CLOSE(out, p.dense(p.inputs()), 1e-13);
}

// Every document has as many groups as half its tokens, and a query sees those that are whole.
TEST_P(Attention, WithAllVisibleGroupsItEqualsChoosingThem) {
  AttentionProblem p = GetParam();
  std::vector<int64_t> first, count, chosen;
  int64_t groups = 0, most = 0;
  for (int64_t length : p.documents) {
    for (int64_t t = 0; t < length; ++t) first.push_back(groups), count.push_back((t + 1) / 2);
    groups += length / 2;
    most = std::max(most, length / 2);
  }
  for (int64_t t = 0; t < p.tokens; ++t) {
    for (int64_t i = 0; i < most; ++i) chosen.push_back(i < count[t] ? first[t] + i : -1);
  }
  p.groups = groups;
  p.k = most;
  p.compressed_kv = normal({groups, p.d}, "compressed");
  p.topk = integers(chosen).view({p.tokens, most}).to(at::kInt);
  const VisibleGroups visible{integers(first), integers(count)};
  const at::Tensor expected = p.dense(p.inputs()), cotangent = normal(expected.sizes(), "cotangent");
  const Tensors derived = gradients([&](const Tensors& x) { return p.dense(x); }, p.inputs(), cotangent);
  for (int64_t chunk : {1, 7, 128}) {
    const AttentionShape shape{p.window, chunk};
    const auto f = [&](const Tensors& x) {
      return dense_attention(x[0], x[1], x[2], visible, x[3], at::arange(p.tokens), p.start, shape);
    };
    EXPECT_CLOSE(f(p.inputs()), expected, 1e-13) << chunk;
    const Tensors ours = gradients(f, p.inputs(), cotangent);
    for (size_t i = 0; i < ours.size(); ++i) EXPECT_CLOSE(ours[i], derived[i], 1e-12) << "input " << i << ", chunk " << chunk;
    for (const bool windowed : {false, true}) {
      const at::Tensor sums =
          chosen_attention(p.q, p.window_kv, p.compressed_kv, p.topk, p.sink, at::arange(p.tokens), p.start, shape, windowed);
      for (int64_t t = 0; t < p.tokens; t += 3) {
        const GroupAttention found = visible_attention(p.q, p.window_kv, p.compressed_kv, visible, p.sink, at::arange(p.tokens),
                                                       p.start, shape, windowed, t, 1);
        ASSERT_EQ(found.sums.size(1), count[t]);
        EXPECT_CLOSE(found.sums[0], sums[t].narrow(0, 0, count[t]), 1e-13);
      }
    }
  }
}

TEST(AttentionWindow, OneDocumentDoesNotFeelAnother) {
  const AttentionProblem p({8, 6}, 5, 0, 0);
  Tensors changed = p.inputs();
  changed[1] = changed[1].clone();
  changed[1].narrow(0, 0, 8).add_(1);
  for (int64_t chunk : {0, 128})
    EXPECT_SAME_BITS(p.ours(changed, chunk).narrow(0, 8, 6), p.ours(p.inputs(), chunk).narrow(0, 8, 6));
}

// The queries of some tokens alone, as behind a halo or a kept prefix: every key stays.
TEST(AttentionWindow, QueriesOfSomeTokensEqualTheirRowsOfTheWhole) {
  const AttentionProblem p({17, 9, 30}, 5, 6, 3);
  const at::Tensor kept = integers({0, 3, 4, 16, 17, 24, 25, 26, 27, 40, 55});
  const at::Tensor whole = p.dense(p.inputs()), cotangent = normal({kept.size(0), p.heads, p.d}, "cotangent");
  const Tensors derived = gradients([&](const Tensors& x) { return p.dense(x).index_select(0, kept); }, p.inputs(), cotangent);
  for (int64_t chunk : {0, 1, 3, 128}) {
    const auto f = [&](const Tensors& x) {
      return csa2_attention(x[0].index_select(0, kept), x[1], x[2], p.topk.index_select(0, kept), x[3], kept,
                            p.start.index_select(0, kept), p.shape(chunk));
    };
    EXPECT_CLOSE(f(p.inputs()), whole.index_select(0, kept), 1e-13) << chunk;
    const Tensors ours = gradients(f, p.inputs(), cotangent);
    for (size_t i = 0; i < ours.size(); ++i) EXPECT_CLOSE(ours[i], derived[i], 1e-12) << "input " << i << ", chunk " << chunk;
  }
}

// Heads and widths that fill no vector, fill some, and fill several; in FP32, whose loops are others than those of FP64: no
// further from FP64 than the reference in FP32 is, but for a few units in the last place.
TEST(FusedAttention, EveryNumberOfHeadsAndEveryWidthGivesTheReference) {
  for (const int64_t heads : {1, 4, 7, 33}) {
    for (const int64_t d : {1, 12, 47}) {
      AttentionProblem p({5, 31}, 9, 23, 6);
      p.heads = heads;
      p.d = d;
      const Tensors wide{normal({p.tokens, heads, d}, "q"), normal({p.tokens, d}, "w"), normal({p.groups, d}, "c"),
                         normal({heads}, "s")};
      Tensors inputs;
      for (const at::Tensor& x : wide) inputs.push_back(x.to(at::kFloat));
      const at::Tensor cotangent = normal({p.tokens, heads, d}, "cotangent");
      const auto run = [&](const Tensors& x, int64_t chunk) {
        Tensors all = gradients([&](const Tensors& y) { return p.ours(y, chunk); }, x, cotangent.to(x[0].scalar_type()));
        all.push_back(p.ours(x, chunk));
        for (const bool windowed : {false, true})
          all.push_back(
              chosen_attention(x[0], x[1], x[2], p.topk, x[3], at::arange(p.tokens), p.start, p.shape(chunk), windowed));
        return all;
      };
      const Tensors ours = run(inputs, 0), reference = run(inputs, 16), exact = run(wide, 16);
      for (size_t i = 0; i < ours.size(); ++i)
        EXPECT_CLOSE(ours[i], exact[i], 4 * relative_error(reference[i], exact[i]) + 1e-6)
            << heads << " heads of " << d << ", result " << i;
    }
  }
}

TEST(FusedAttention, BitsDoNotDependOnTheNumberOfThreads) {
  AttentionProblem p({100, 61}, 17, 90, 7);
  const Tensors inputs{p.q.to(at::kFloat), p.window_kv.to(at::kFloat), p.compressed_kv.to(at::kFloat), p.sink.to(at::kFloat)};
  const at::Tensor cotangent = normal(p.q.sizes(), "cotangent").to(at::kFloat);
  const auto f = [&](const Tensors& x) { return p.ours(x, 0); };
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  const at::Tensor out = f(inputs);
  const Tensors derived = gradients(f, inputs, cotangent);
  for (const int other : {2, 3}) {
    at::set_num_threads(other);
    EXPECT_SAME_BITS(f(inputs), out);
    const Tensors again = gradients(f, inputs, cotangent);
    for (size_t i = 0; i < again.size(); ++i) EXPECT_SAME_BITS(again[i], derived[i]);
  }
  at::set_num_threads(threads);
}

TEST(FusedAttention, LogitsThatAreLargeAndFarApartStayFinite) {
  AttentionProblem p({40}, 8, 11, 4);
  const Tensors inputs{(p.q * 200).to(at::kFloat), p.window_kv.to(at::kFloat), p.compressed_kv.to(at::kFloat),
                       p.sink.to(at::kFloat)};
  EXPECT_CLOSE(p.ours(inputs, 0), p.ours(inputs, 16), 1e-4);
  for (const at::Tensor& d : gradients([&](const Tensors& x) { return p.ours(x, 0); }, inputs, inputs[0]))
    EXPECT_TRUE(d.isfinite().all().item<bool>());
}

// Widths whose numbers are multiplied in pairs, and others; heads that fill no vector, one, and several.
TEST(AttentionTypes, Bfloat16StaysNearAndGivesGradientsOfEachInputsType) {
  for (const int64_t heads : {1, 3, 8, 13, 33}) {
    for (const int64_t d : {6, 16, 48, 96}) {
      AttentionProblem p({40, 23}, 9, 31, 5);
      p.heads = heads, p.d = d;
      const Tensors low = {normal({p.tokens, heads, d}, "q", at::kBFloat16), normal({p.tokens, d}, "w", at::kBFloat16),
                           normal({p.groups, d}, "c", at::kBFloat16), normal({heads}, "s", at::kFloat)};
      Tensors wide;
      for (const at::Tensor& x : low) wide.push_back(x.to(at::kDouble));
      const at::Tensor cotangent = normal(low[0].sizes(), "cotangent", at::kBFloat16);
      const Tensors derived = gradients([&](const Tensors& x) { return p.ours(x, 16); }, wide, cotangent.to(at::kDouble));
      const at::Tensor exact = p.ours(wide, 16);
      for (int64_t chunk : {0, 16}) EXPECT_CLOSE(p.ours(low, chunk), exact, 0.02) << heads << " heads of " << d;
      const auto ours = [&](int64_t chunk) {
        return gradients([&](const Tensors& x) { return p.ours(x, chunk); }, low, cotangent);
      };
      const Tensors fused = ours(0), reference = ours(16);  // which is off where a gradient is a sum that cancels
      for (size_t i = 0; i < fused.size(); ++i) {
        EXPECT_EQ(fused[i].scalar_type(), low[i].scalar_type());
        EXPECT_CLOSE(fused[i], derived[i], std::max(0.03, relative_error(reference[i], derived[i])))
            << heads << " heads of " << d << ", input " << i;
      }
      for (const bool windowed : {false, true}) {
        const auto chosen = [&](const Tensors& x, int64_t chunk) {
          return chosen_attention(x[0], x[1], x[2], p.topk, x[3], at::arange(p.tokens), p.start, p.shape(chunk), windowed);
        };
        EXPECT_CLOSE(chosen(low, 0), chosen(wide, 16), 0.02) << heads << " heads of " << d;
      }
    }
  }
}

TEST(AttentionTypes, AWindowOrChunkOfNothingIsRefused) {
  const AttentionProblem p({3}, 1, 1, 1);
  EXPECT_THROW(csa2_attention(p.q, p.window_kv, {}, {}, p.sink, at::arange(p.tokens), p.start, {0, 4}), InternalError);
  EXPECT_THROW(csa2_attention(p.q, p.window_kv, {}, {}, p.sink, at::arange(p.tokens), p.start, {4, 0}), InternalError);
}

}  // namespace
}  // namespace hyperparallel::kernels
