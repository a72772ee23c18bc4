// Mixture of experts: routing, the order of rows, the gated activation. Rules: docs/model.md, Mixture of
// experts.
#pragma once

#include "base/aten.h"

#include "kernels/choice.h"

namespace hyperparallel::kernels {

// How experts of this size can be computed: each alone by library products (reference), or all as one plan of tasks (mega:
// mega.h).
std::vector<Candidate> expert_candidates(at::ScalarType type, int64_t d, int64_t width);

// sqrt(softplus(logits / temperature)), FP32 (FP64): logits [tokens, experts].
at::Tensor router_scores(const at::Tensor& logits, double temperature);

// The `k` best experts of each token by score + bias (bias_vl where `image`), the smaller id first among equals, ids ascending.
// scores [tokens, experts]; bias, bias_vl [experts]; image bool [tokens] -> int64 [tokens, k].
at::Tensor choose_experts(const at::Tensor& scores, const at::Tensor& bias, const at::Tensor& bias_vl, const at::Tensor& image,
                          int64_t k);

// Unbiased scores of the chosen, normalised by (sum + 1e-20) when asked and k > 1, times `scale` -> [tokens, k]. Differentiable.
at::Tensor expert_weights(const at::Tensor& scores, const at::Tensor& expert_ids, bool normalise, double scale);

// The router: scores of all experts, ids and weights of the chosen, by the three functions above (reference) or in one pass over
// the logits (mega).
struct RouterRule {
  int64_t k;
  double temperature;
  bool normalise;
  double scale;
};
struct RouterChoice {
  at::Tensor ids;                   // int64 [tokens, k] where they are chosen already; undefined: by the rest
  at::Tensor bias, bias_vl, image;  // [experts], [experts], bool [tokens]
};
struct Routed {
  at::Tensor scores, ids,
      weights;  // [tokens, experts], [tokens, k], [tokens, k]; scores and weights are differentiable in logits
};
Routed route(const at::Tensor& logits, const RouterChoice& choice, const RouterRule& rule, Implementation how);
std::vector<Candidate> gate_candidates(bool on_cpu);

// Rows sorted by expert, token order within one: row r is choice `order[r]` (= token * k + place); offsets [experts + 1].
struct RowOrder {
  at::Tensor order;    // int64 [tokens * k]
  at::Tensor offsets;  // int64 [experts + 1]
};
RowOrder sort_rows(const at::Tensor& expert_ids, int64_t experts);

// silu(g) * u * weight: g, u [rows, width] cast to FP32, u clamped to [-limit, limit] and g above at limit (0: off), weight
// [rows] or undefined -> [rows, width] in g's type.
at::Tensor clamped_swiglu(const at::Tensor& gate, const at::Tensor& up, const at::Tensor& weight, double limit);

// out[t] = sum over the token's k rows in FP32: rows [tokens * k, d] in sorted order -> [tokens, d] FP32 (FP64).
at::Tensor combine_rows(const at::Tensor& rows, const at::Tensor& order, int64_t k);
// The reverse: row r = x[order[r] / k]. x [tokens, d] -> [tokens * k, d].
at::Tensor dispatch_rows(const at::Tensor& x, const at::Tensor& order, int64_t k);

}  // namespace hyperparallel::kernels
