// Causal attention against its formula, composed of whole logits and derived by autograd.
#include "kernels/causal_attention/op.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace hyperparallel::kernels {
namespace {

struct Case {
  at::Tensor q, k, v, first, row;
};

// Documents of 1, 7 and 5 tokens; queries are the tokens `of` them, as a rank of a context-parallel group has.
Case make_case(int64_t heads, int64_t kv_heads, int64_t d, const std::vector<int64_t>& of, at::ScalarType type) {
  const std::vector<int64_t> begin = {0, 1, 1, 1, 1, 1, 1, 1, 8, 8, 8, 8, 8};
  at::manual_seed(3);
  const auto random = [&](int64_t rows, int64_t count) {
    return at::randn({rows, count, d}, at::kDouble).to(type).set_requires_grad(true);
  };
  std::vector<int64_t> first;
  for (int64_t token : of) first.push_back(begin[token]);
  const auto tokens = static_cast<int64_t>(begin.size());
  return {random(static_cast<int64_t>(of.size()), heads), random(tokens, kv_heads), random(tokens, kv_heads),
          at::tensor(first, at::kLong), at::tensor(of, at::kLong)};
}

at::Tensor formula(const Case& c) {
  const int64_t group = c.q.size(1) / c.k.size(1), keys = c.k.size(0);
  const at::Tensor k = c.k.repeat_interleave(group, 1), v = c.v.repeat_interleave(group, 1);
  const at::Tensor logits = at::einsum("thd,jhd->htj", {c.q, k}) / std::sqrt(static_cast<double>(c.q.size(2)));
  const at::Tensor key = at::arange(keys, at::kLong);
  const at::Tensor hidden = key.lt(c.first.unsqueeze(1)).logical_or(key.gt(c.row.unsqueeze(1)));
  return at::einsum("htj,jhd->thd", {at::softmax(logits.masked_fill(hidden, -std::numeric_limits<double>::infinity()), -1), v});
}

void expect_equal(const at::Tensor& found, const at::Tensor& expected, const std::string& what) {
  EXPECT_LT((found - expected).abs().max().item<double>(), 1e-12) << what;
}

TEST(CausalAttention, IsItsFormulaForwardAndBackward) {
  const std::vector<int64_t> all = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, head_and_tail = {0, 1, 2, 3, 10, 11, 12},
                             one = {6};
  for (const auto& of : {all, head_and_tail, one}) {
    for (const auto& [heads, kv_heads] : {std::pair(6, 2), std::pair(3, 3), std::pair(4, 1)}) {
      for (const int64_t chunk : {1, 4, 100}) {
        const std::string what = fmt::format("{} queries, {} over {} heads, chunk {}", of.size(), heads, kv_heads, chunk);
        const Case c = make_case(heads, kv_heads, 5, of, at::kDouble);
        const at::Tensor out = causal_attention(c.q, c.k, c.v, c.first, c.row, chunk), expected = formula(c);
        expect_equal(out, expected, what);
        const at::Tensor cotangent = at::randn(out.sizes(), at::kDouble);
        const auto found = torch::autograd::grad({out}, {c.q, c.k, c.v}, {cotangent});
        const auto wanted = torch::autograd::grad({expected}, {c.q, c.k, c.v}, {cotangent});
        for (size_t i = 0; i < found.size(); ++i) expect_equal(found[i], wanted[i], what + fmt::format(", gradient {}", i));
      }
    }
  }
}

TEST(CausalAttention, OfNoQueriesIsNothingAndGivesZeroGradients) {
  const Case c = make_case(4, 2, 5, {}, at::kFloat);
  const at::Tensor out = causal_attention(c.q, c.k, c.v, c.first, c.row, 8);
  EXPECT_EQ(out.size(0), 0);
  const auto gradients = torch::autograd::grad({out}, {c.k}, {at::zeros_like(out)});
  EXPECT_EQ(gradients[0].abs().sum().item<double>(), 0);
}

TEST(CausalAttention, InBfloat16SumsInFloat) {
  const Case narrow = make_case(6, 2, 8, {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, at::kBFloat16);
  const Case wide = {narrow.q.to(at::kDouble), narrow.k.to(at::kDouble), narrow.v.to(at::kDouble), narrow.first, narrow.row};
  const at::Tensor out = causal_attention(narrow.q, narrow.k, narrow.v, narrow.first, narrow.row, 4);
  EXPECT_EQ(out.scalar_type(), at::kBFloat16);
  EXPECT_LT((out.to(at::kDouble) - formula(wide)).abs().max().item<double>(), 0.01);
}

}  // namespace
}  // namespace hyperparallel::kernels
