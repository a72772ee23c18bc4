#include "models/deepseek_v41/kernel_benchmarks.h"

#include <ATen/ops/log_softmax.h>
#include <ATen/ops/nll_loss.h>
#include <ATen/ops/randint.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <memory>

#include "engine/experts.h"
#include "engine/weight.h"
#include "kernels/attention/op.h"
#include "kernels/engram/op.h"
#include "kernels/indexer/op.h"
#include "kernels/mhc/op.h"
#include "kernels/moe/op.h"
#include "kernels/norm/op.h"
#include "kernels/rope/op.h"
#include "kernels/types.h"

namespace hyperparallel::models::deepseek_v41 {
namespace {

using kernels::Implementation;
using Tensors = std::vector<at::Tensor>;

at::Tensor leaf(const at::Tensor& x) {
  return x.detach().requires_grad_();
}

// Forward, then backward from gradients of ones.
template <class Forward>
std::function<void()> step(const Tensors& inputs, const Forward& forward) {
  Tensors leaves;
  for (const at::Tensor& x : inputs) leaves.push_back(leaf(x));
  return [=] {
    const at::AutoGradMode grad(true);
    const Tensors out = forward(leaves);
    Tensors ones;
    for (const at::Tensor& x : out) ones.push_back(at::ones_like(x));
    torch::autograd::grad(out, leaves, ones, std::nullopt, false, /*allow_unused=*/true);
  };
}

class Benchmarks {
 public:
  Benchmarks(const TextConfig& text, int64_t tokens, at::ScalarType compute)
      : t_(text),
        tokens_(tokens),
        math_(at::TensorOptions(kernels::math_type(compute))),
        options_(at::TensorOptions(compute)),
        bytes_(static_cast<double>(c10::elementSize(compute))) {
    for (int64_t ratio : t_.compress_ratios)
      if (ratio_ == 0) ratio_ = ratio;
  }

  // Its list keeps it alive.
  static std::vector<KernelBenchmarkMaker> all(const std::shared_ptr<Benchmarks>& self) {
    const TextConfig& t = self->t_;
    const auto tokens = static_cast<double>(self->tokens_), bytes = self->bytes_;
    const auto d = static_cast<double>(t.hidden_size), n = static_cast<double>(t.hc_mult);
    std::vector<KernelBenchmarkMaker> list;
    // `numbers`: of tensors that a call keeps or makes, about; half of them in the math type.
    const auto add = [&](const char* operation, double numbers, KernelBenchmark (Benchmarks::*make)() const) {
      list.push_back({operation, numbers * (bytes + 4) / 2, [=] {
                        at::manual_seed(1);
                        return (self.get()->*make)();
                      }});
    };
    const double heads = static_cast<double>(t.num_attention_heads * t.head_dim), words = static_cast<double>(t.vocab_size) * d,
                 experts = static_cast<double>(t.n_routed_experts * t.moe_intermediate_size) * d,
                 rows = tokens * static_cast<double>(t.num_experts_per_tok);
    if (self->ratio_ > 0) {
      add("attention", tokens * (8 * heads + 3 * static_cast<double>(t.index_topk)), &Benchmarks::attention);
      add("indexer", tokens * static_cast<double>(t.index_n_heads * t.index_head_dim + 2 * t.index_topk), &Benchmarks::indexer);
    }
    add("gate", 8 * tokens * static_cast<double>(t.n_routed_experts), &Benchmarks::router);
    add("moe", 12 * experts + rows * (4 * d + 8 * static_cast<double>(t.moe_intermediate_size)), &Benchmarks::experts);
    add("mhc", 14 * tokens * n * d, &Benchmarks::mhc);
    if (!t.engram_layer_ids.empty()) add("engram", 16 * tokens * n * d, &Benchmarks::engram);
    add("norm", 8 * tokens * d, &Benchmarks::norm);
    add("rope", 8 * tokens * heads, &Benchmarks::rope);
    add("cross_entropy", 4 * words + 4 * tokens * static_cast<double>(t.vocab_size), &Benchmarks::cross_entropy);
    return list;
  }

 private:
  at::Tensor normal(at::IntArrayRef sizes, double std = 1) const { return (at::randn(sizes) * std).to(options_); }
  at::Tensor normal_math(at::IntArrayRef sizes, double std = 1) const { return (at::randn(sizes) * std).to(math_); }

  KernelBenchmark attention() const {
    const int64_t heads = t_.num_attention_heads, d = t_.head_dim, groups = tokens_ / ratio_, k = std::min(t_.index_topk, groups);
    const at::Tensor row = at::arange(tokens_), start = at::zeros({tokens_}, at::kLong);
    at::Tensor topk = at::randint(std::max<int64_t>(1, groups), {tokens_, k}, at::kInt);
    topk = std::get<0>(topk.sort(1));
    const at::Tensor again = topk.narrow(1, 1, std::max<int64_t>(0, k - 1)).eq(topk.narrow(1, 0, std::max<int64_t>(0, k - 1)));
    if (k > 1) topk.narrow(1, 1, k - 1).masked_fill_(again, -1);
    topk.masked_fill_(topk.ge(((row + 1) / ratio_).floor().unsqueeze(1)), -1);
    const Tensors inputs{normal({tokens_, heads, d}), normal({tokens_, d}), normal({groups, d}), normal_math({heads})};
    const auto run = [=, window = t_.sliding_window](bool fused) {
      return step(inputs, [=](const Tensors& x) {
        return Tensors{kernels::csa2_attention(x[0], x[1], x[2], topk, x[3], row, start, {window, 128, fused})};
      });
    };
    const double keys = static_cast<double>(topk.ge(0).sum().item<int64_t>()) +
                        static_cast<double>(tokens_ * std::min(t_.sliding_window, tokens_));
    // Two products forward, four backward.
    return {fmt::format("{} heads of {}, window {}, {} groups", heads, d, t_.sliding_window, k), run(true), run(false),
            12 * keys * static_cast<double>(heads * d), 0};
  }

  KernelBenchmark indexer() const {
    const int64_t heads = t_.index_n_heads, d = t_.index_head_dim, groups = tokens_ / ratio_;
    const kernels::IndexQueries queries{normal({tokens_, heads, d}),
                                        normal({tokens_, heads}),
                                        at::zeros({tokens_}, at::kLong),
                                        (at::arange(tokens_) + 1).div(ratio_, "floor"),
                                        heads,
                                        {}};
    const at::Tensor keys = normal({groups, d});
    const auto run = [=, k = std::min(t_.index_topk, groups)](Implementation how) {
      return [=] { kernels::choose_groups(queries, keys, k, {}, {}, 8 << 20, how); };
    };
    const double pairs = static_cast<double>(queries.count.sum().item<int64_t>());
    return {fmt::format("{} heads of {}, top {} of {}", heads, d, t_.index_topk, groups), run(Implementation::kMega),
            run(Implementation::kReference), 2 * pairs * static_cast<double>(heads * d), 0};
  }

  KernelBenchmark router() const {
    const int64_t experts = t_.n_routed_experts, k = t_.num_experts_per_tok;
    const kernels::RouterChoice choice{{}, normal_math({experts}), normal_math({experts}), at::zeros({tokens_}, at::kBool)};
    const kernels::RouterRule rule{k, t_.gate_temp, t_.norm_topk_prob, t_.routed_scaling_factor};
    const auto run = [=, logits = normal_math({tokens_, experts})](Implementation how) {
      return step({logits}, [=](const Tensors& x) {
        const kernels::Routed routed = kernels::route(x[0], choice, rule, how);
        return Tensors{routed.scores, routed.weights};
      });
    };
    // Logits and scores forward; these, the scores' gradient and that of the logits backward; ids and weights twice.
    return {fmt::format("top {} of {}", k, experts), run(Implementation::kMega), run(Implementation::kReference), 0,
            static_cast<double>(tokens_) * (6.0 * 4 * static_cast<double>(experts) + 24.0 * static_cast<double>(k))};
  }

  KernelBenchmark experts() const {
    const int64_t experts = t_.n_routed_experts, k = t_.num_experts_per_tok, d = t_.hidden_size, width = t_.moe_intermediate_size;
    const at::Tensor ids = std::get<1>(at::randn({tokens_, experts}).topk(k, 1));
    const kernels::RowOrder rows = kernels::sort_rows(ids, experts);
    const at::Tensor x = normal({tokens_, d}), weights = normal_math({tokens_ * k});
    const Tensors matrices{normal({experts, width, d}, 0.05), normal({experts, width, d}, 0.05),
                           normal({experts, d, width}, 0.05)};
    std::vector<engine::ParameterSpec> specs(3);
    for (size_t i = 0; i < specs.size(); ++i) specs[i].name = fmt::format("w{}", i), specs[i].shape = matrices[i].sizes().vec();
    const auto store =
        std::make_shared<engine::ParameterStore>(specs, math_.dtype().toScalarType(), options_.dtype().toScalarType());
    for (int i = 0; i < 3; ++i) store->master({i}).copy_(matrices[i]), store->gather({i});
    const auto ours = [=, limit = t_.swiglu_limit] {
      const at::AutoGradMode grad(true);
      const at::Tensor in = leaf(x), by = leaf(weights), anchor = at::empty({0}).requires_grad_();
      const engine::RoutedExperts routed{
          rows.order, rows.offsets, by, k, {{store.get(), {0}, anchor}, {store.get(), {1}, anchor}, {store.get(), {2}, anchor}}};
      const at::Tensor out = engine::expert_layer(in, routed, std::nullopt, limit);
      torch::autograd::grad({out}, {in, by, anchor}, {at::ones_like(out)}, std::nullopt, false, true);
      for (int i = 0; i < 3; ++i) store->take_slot({i});
    };
    const auto library =
        step({x, weights, matrices[0], matrices[1], matrices[2]}, [=, limit = t_.swiglu_limit](const Tensors& in) {
          const at::Tensor sorted = kernels::dispatch_rows(in[0], rows.order, k), by = in[1].index_select(0, rows.order);
          Tensors outs;
          for (int64_t e = 0; e < experts; ++e) {
            const int64_t begin = rows.offsets[e].item<int64_t>(), count = rows.offsets[e + 1].item<int64_t>() - begin;
            const at::Tensor own = sorted.narrow(0, begin, count);
            const at::Tensor middle = kernels::clamped_swiglu(
                at::linear(own, in[2].select(0, e)), at::linear(own, in[3].select(0, e)), by.narrow(0, begin, count), limit);
            outs.push_back(at::linear(middle, in[4].select(0, e)));
          }
          return Tensors{kernels::combine_rows(at::cat(outs), rows.order, k)};
        });
    return {fmt::format("top {} of {} x {} x {} x 3", k, experts, d, width), ours, library,
            18.0 * static_cast<double>(tokens_ * k) * static_cast<double>(d * width), 0};
  }

  KernelBenchmark mhc() const {
    const int64_t n = t_.hc_mult, d = t_.hidden_size, outputs = (2 + n) * n;
    const Tensors inputs{normal({tokens_, d}),         normal({tokens_, n, d}),   normal_math({tokens_, n}),
                         normal_math({tokens_, n, n}), normal_math({tokens_, n}), normal_math({outputs, n * d}, 0.02)};
    const auto run = [=, eps = t_.rms_norm_eps, hc_eps = t_.hc_eps, iterations = t_.hc_sinkhorn_iters,
                      scale = at::full({3}, 0.01, math_), base = normal_math({outputs}),
                      gain = at::ones({d}, options_)](Implementation how) {
      return step(inputs, [=](const Tensors& x) {
        const auto [streams, in] =
            kernels::boundary(x[0], x[1], x[2], x[3], x[4], {x[5], scale, base, gain, eps, hc_eps, iterations}, how);
        return Tensors{streams, in.coefficients.pre, in.coefficients.post, in.coefficients.comb, in.x};
      });
    };
    // Forward reads y and streams and writes streams and x; backward reads both streams, y and the gradients of streams and x,
    // and writes the gradients of streams and y.
    return {fmt::format("{} streams of {}", n, d), run(Implementation::kMega), run(Implementation::kReference),
            6.0 * static_cast<double>(tokens_ * outputs * n * d), bytes_ * static_cast<double>(tokens_ * d * (5 + 6 * n))};
  }

  KernelBenchmark engram() const {
    const int64_t n = t_.hc_mult, d = t_.hidden_size;
    const Tensors inputs{normal({tokens_, n, d}), normal({tokens_, (n + 1) * d}), normal_math({n, d}), normal_math({n, d})};
    const auto run = [=, closed = at::zeros({tokens_}, at::kBool), eps = t_.rms_norm_eps](Implementation how) {
      return step(inputs, [=](const Tensors& x) {
        return Tensors{kernels::engram_write(x[0], x[1], x[2], x[3], closed, eps, how).second};
      });
    };
    // Forward reads streams, keys and values and writes streams; backward reads all of these and writes three of their gradients.
    return {fmt::format("{} streams of {}", n, d), run(Implementation::kFused), run(Implementation::kReference), 0,
            bytes_ * static_cast<double>(tokens_ * d * (8 * n + 3))};
  }

  KernelBenchmark norm() const {
    const Tensors inputs{normal({tokens_, t_.hidden_size}), normal({t_.hidden_size})};
    const auto run = [=, eps = t_.rms_norm_eps](auto norm) {
      return step(inputs, [=](const Tensors& x) { return Tensors{norm(x[0], x[1], eps)}; });
    };
    return {fmt::format("rows of {}", t_.hidden_size), run(kernels::rms_norm), run(kernels::rms_norm_reference), 0,
            5 * bytes_ * static_cast<double>(tokens_ * t_.hidden_size)};
  }

  KernelBenchmark rope() const {
    const int64_t heads = t_.num_attention_heads, d = t_.head_dim;
    const kernels::RopeTable table = kernels::rope_table(
        at::arange(tokens_), kernels::rope_frequencies(t_.qk_rope_head_dim, 10000), math_.dtype().toScalarType());
    const auto run = [=, x = normal({tokens_, heads, d})](auto rope) {
      return step({x}, [=](const Tensors& in) { return Tensors{rope(in[0], table, false)}; });
    };
    return {fmt::format("{} heads of {}", heads, d), run(kernels::apply_rope), run(kernels::apply_rope_reference), 0,
            4 * bytes_ * static_cast<double>(tokens_ * heads * d)};
  }

  KernelBenchmark cross_entropy() const {
    const int64_t d = t_.hidden_size, words = t_.vocab_size;
    const at::Tensor hidden = normal({tokens_, d}), targets = at::randint(words, {tokens_}, at::kLong),
                     table = normal({words, d}, 0.02);
    engine::ParameterSpec spec;
    spec.name = "head", spec.shape = {words, d};
    const auto store = std::make_shared<engine::ParameterStore>(std::vector<engine::ParameterSpec>{spec},
                                                                math_.dtype().toScalarType(), options_.dtype().toScalarType());
    store->master({0}).copy_(table), store->gather({0});
    const auto ours = [=] {
      const at::AutoGradMode grad(true);
      const at::Tensor in = leaf(hidden), anchor = at::empty({0}).requires_grad_();
      const at::Tensor loss = engine::linear_cross_entropy(in, targets, {store.get(), {0}, anchor}, 1024).sum;
      torch::autograd::grad({loss}, {in, anchor}, {}, std::nullopt, false, true);
      store->take_slot({0});
    };
    const auto library = step({hidden, table}, [=](const Tensors& x) {
      return Tensors{at::nll_loss(at::log_softmax(kernels::to_math(at::linear(x[0], x[1])), 1), targets)};
    });
    return {fmt::format("{} words of {}", words, d), ours, library,
            6.0 * static_cast<double>(tokens_) * static_cast<double>(words * d), 0};
  }

  const TextConfig t_;
  const int64_t tokens_;
  at::TensorOptions math_, options_;
  double bytes_;
  int64_t ratio_ = 0;  // of groups; 0: there are none
};

}  // namespace

std::vector<KernelBenchmarkMaker> kernel_benchmarks(const TextConfig& text, int64_t tokens, at::ScalarType compute) {
  return Benchmarks::all(std::make_shared<Benchmarks>(text, tokens, compute));
}

}  // namespace hyperparallel::models::deepseek_v41
