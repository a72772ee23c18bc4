#include <cmath>

#include "kernels/engram/op.h"
#include "kernels/mhc/op.h"
#include "support/tensors.h"

namespace hyperparallel::kernels {
namespace {

using namespace hyperparallel::test;

double sigmoid(double x) {
  return 1 / (1 + std::exp(-x));
}
double at2(const at::Tensor& x, int64_t i, int64_t j) {
  return x[i][j].item<double>();
}
double at3(const at::Tensor& x, int64_t i, int64_t j, int64_t k) {
  return x[i][j][k].item<double>();
}

struct Mix {
  int64_t tokens, n, d;
  at::Tensor streams = normal({tokens, n, d}, "streams"), fn = normal({(2 + n) * n, n * d}, "fn", at::kDouble, 0.3);
  at::Tensor scale = at::tensor({0.7, 1.3, 0.9}, at::kDouble), base = normal({(2 + n) * n}, "base");
};

class MixCoefficientsTest : public ::testing::TestWithParam<Mix> {};

TEST_P(MixCoefficientsTest, EqualAPlainLoop) {
  const auto& [tokens, n, d, streams, fn, scale, base] = GetParam();
  const double rms_eps = 1e-3, hc_eps = 1e-2;  // large, so that a misplaced one shows
  const int64_t iterations = 3;
  const MixCoefficients mix = mix_coefficients(streams, fn, scale, base, rms_eps, hc_eps, iterations);
  for (int64_t t = 0; t < tokens; ++t) {
    double square = 0;
    for (int64_t i = 0; i < n * d; ++i) square += std::pow(at3(streams, t, i / d, i % d), 2);
    std::vector<double> m((2 + n) * n);
    for (int64_t r = 0; r < (2 + n) * n; ++r) {
      for (int64_t i = 0; i < n * d; ++i) m[r] += at2(fn, r, i) * at3(streams, t, i / d, i % d);
      m[r] = m[r] / std::sqrt(square / static_cast<double>(n * d) + rms_eps) *
                 scale[r < n       ? 0
                       : r < 2 * n ? 1
                                   : 2]
                     .item<double>() +
             base[r].item<double>();
    }
    for (int64_t k = 0; k < n; ++k) {
      EXPECT_NEAR(at2(mix.pre, t, k), sigmoid(m[k]) + hc_eps, 1e-12);
      EXPECT_NEAR(at2(mix.post, t, k), 2 * sigmoid(m[n + k]), 1e-12);
    }
    std::vector<double> c(n * n);  // [source, destination]
    for (int64_t s = 0; s < n; ++s) {
      double sum = 0;
      for (int64_t e = 0; e < n; ++e) sum += std::exp(m[2 * n + s * n + e]);
      for (int64_t e = 0; e < n; ++e) c[s * n + e] = std::exp(m[2 * n + s * n + e]) / sum + hc_eps;
    }
    const auto over_sources = [&] {
      for (int64_t e = 0; e < n; ++e) {
        double sum = hc_eps;
        for (int64_t s = 0; s < n; ++s) sum += c[s * n + e];
        for (int64_t s = 0; s < n; ++s) c[s * n + e] /= sum;
      }
    };
    over_sources();
    for (int64_t i = 1; i < iterations; ++i) {
      for (int64_t s = 0; s < n; ++s) {
        double sum = hc_eps;
        for (int64_t e = 0; e < n; ++e) sum += c[s * n + e];
        for (int64_t e = 0; e < n; ++e) c[s * n + e] /= sum;
      }
      over_sources();
    }
    for (int64_t i = 0; i < n * n; ++i) EXPECT_NEAR(at3(mix.comb, t, i / n, i % n), c[i], 1e-12);
  }
}

// Forward and every gradient, of streams in the model type `type`; through non-contiguous inputs.
void expect_equal_to_reference(const Mix& mix, at::ScalarType type, double tolerance) {
  const at::ScalarType math = type == at::kDouble ? at::kDouble : at::kFloat;
  const auto run = [&](auto&& function) {
    Tensors in{strided(mix.streams).to(type), mix.fn.to(math), mix.scale.to(math), mix.base.to(math)};
    for (at::Tensor& tensor : in) tensor = tensor.detach().requires_grad_(true);
    const MixCoefficients out = function(in[0], in[1], in[2], in[3], 1e-6, 1e-6, 20);
    const auto weight = [&](const at::Tensor& x, const char* name) { return (x * normal(x.sizes(), name).to(math)).sum(); };
    (weight(out.pre, "dpre") + weight(out.post, "dpost") + weight(out.comb, "dcomb")).backward();
    Tensors all{out.pre.detach(), out.post.detach(), out.comb.detach()};
    for (const at::Tensor& tensor : in) all.push_back(tensor.grad());
    return all;
  };
  const Tensors ours = run(mix_coefficients), theirs = run(reference::mix_coefficients);
  for (size_t i = 0; i < ours.size(); ++i) {
    ASSERT_EQ(ours[i].sizes(), theirs[i].sizes()) << i;
    ASSERT_EQ(ours[i].scalar_type(), theirs[i].scalar_type()) << i;
    if (ours[i].numel() == 0) continue;
    const at::Tensor a = ours[i].to(at::kDouble), b = theirs[i].to(at::kDouble);
    EXPECT_LE((a - b).abs().max().item<double>(), tolerance * std::max(1e-3, b.abs().max().item<double>())) << "value " << i;
  }
}

TEST_P(MixCoefficientsTest, EqualTheReferenceForwardAndBackward) {
  expect_equal_to_reference(GetParam(), at::kDouble, 1e-12);
  expect_equal_to_reference(GetParam(), at::kFloat, 1e-5);
  expect_equal_to_reference(GetParam(), at::kBFloat16, 1e-2);  // the gradient of the streams rounds to BF16
}

TEST_P(MixCoefficientsTest, CollapseAndExpandEqualAPlainLoopWithAnAsymmetricMatrix) {
  const auto& [tokens, n, d, streams, fn, scale, base] = GetParam();
  const at::Tensor pre = normal({tokens, n}, "pre"), post = normal({tokens, n}, "post"), comb = normal({tokens, n, n}, "comb"),
                   y = normal({tokens, d}, "y");
  const at::Tensor collapsed = collapse(strided(streams), pre);
  for (const Implementation how : {Implementation::kReference, Implementation::kMega}) {
    const at::Tensor expanded = expand(y, streams, strided(post), comb, how);
    for (int64_t t = 0; t < tokens; ++t) {
      for (int64_t c = 0; c < d; ++c) {
        double sum = 0;
        for (int64_t k = 0; k < n; ++k) sum += at2(pre, t, k) * at3(streams, t, k, c);
        EXPECT_NEAR(at2(collapsed, t, c), sum, 1e-12);
        for (int64_t k = 0; k < n; ++k) {
          double out = at2(post, t, k) * at2(y, t, c);
          for (int64_t j = 0; j < n; ++j) out += at3(comb, t, j, k) * at3(streams, t, j, c);
          EXPECT_NEAR(at3(expanded, t, k, c), out, 1e-12);
        }
      }
    }
  }
}

// Two sites in a row with all that they make, and the gradients of all that they read, in the type `type`.
Tensors two_sites(const Mix& mix, at::ScalarType type, Implementation how) {
  const auto& [tokens, n, d, streams, fn, scale, base] = mix;
  const at::ScalarType math = type == at::kDouble ? at::kDouble : at::kFloat;
  Tensors in{strided(streams).to(type), normal({tokens, d}, "y", type), normal({tokens, n}, "given", math)};
  for (const at::Tensor& parameter : {fn, scale, base}) in.push_back(parameter.to(math));
  in.push_back(strided(normal({d}, "gain", math)));
  for (at::Tensor& tensor : in) tensor = tensor.detach().requires_grad_(true);
  const MixParameters parameters{in[3], in[4], in[5], in[6], 1e-3, 1e-2, 4};
  const MixIn first = mix_in(in[0], in[2], parameters, how);
  const auto& [pre, post, comb] = first.coefficients;
  const Boundary second = boundary(first.x * in[1], in[0], post, comb, pre, parameters, how);
  const auto& [pre2, post2, comb2] = second.in.coefficients;
  Tensors all{pre, post, comb, first.x, second.streams, pre2, post2, comb2, second.in.x};
  all.push_back(expand(second.in.x, second.streams, post2, comb2, how));
  at::Tensor sum = at::zeros({}, at::kDouble);
  for (size_t i = 0; i < all.size(); ++i)
    sum = sum + (all[i].to(at::kDouble) * normal(all[i].sizes(), "cotangent " + std::to_string(i))).sum();
  sum.backward();
  for (const at::Tensor& tensor : in) all.push_back(tensor.grad());
  return all;
}

// Relative to 0.1 at least: the gradient of `given` vanishes where one stream is normalised.
TEST_P(MixCoefficientsTest, WholeSitesEqualTheReferenceForwardAndBackward) {
  const std::pair<at::ScalarType, double> types[] = {{at::kDouble, 1e-11}, {at::kFloat, 2e-5}, {at::kBFloat16, 0.05}};
  for (const auto& [type, tolerance] : types) {
    const Tensors expected = two_sites(GetParam(), type, Implementation::kReference);
    for (const Implementation how : {Implementation::kFused, Implementation::kMega}) {
      const Tensors ours = two_sites(GetParam(), type, how);
      for (size_t i = 0; i < ours.size(); ++i) {
        ASSERT_EQ(ours[i].sizes(), expected[i].sizes()) << i;
        ASSERT_EQ(ours[i].scalar_type(), expected[i].scalar_type()) << i;
        if (ours[i].numel() == 0) continue;
        const at::Tensor a = ours[i].to(at::kDouble), b = expected[i].to(at::kDouble);
        EXPECT_LE((a - b).norm().item<double>(), tolerance * std::max(0.1, b.norm().item<double>()))
            << to_string(how) << " value " << i << " in " << at::toString(type);
      }
    }
  }
}

TEST(MhcSite, GivesTheSameBitsWithAnyNumberOfThreads) {
  const Mix mix{301, 4, 24};
  const Tensors one = two_sites(mix, at::kFloat, Implementation::kMega);
  at::set_num_threads(3);
  const Tensors three = two_sites(mix, at::kFloat, Implementation::kMega);
  at::set_num_threads(1);
  for (size_t i = 0; i < one.size(); ++i) EXPECT_SAME_BITS(one[i], three[i]);
}

TEST_P(MixCoefficientsTest, GradientsEqualFiniteDifferences) {
  const auto& [tokens, n, d, streams, fn, scale, base] = GetParam();
  for (int which = 0; which < 3; ++which) {
    expect_finite_differences(
        [&](const Tensors& x) {
          const MixCoefficients mix = mix_coefficients(x[0], x[1], x[2], x[3], 1e-6, 1e-6, 4);
          return which == 0 ? mix.pre : which == 1 ? mix.post : mix.comb;
        },
        {streams, fn, scale, base});
  }
  expect_finite_differences([](const Tensors& x) { return collapse(x[0], x[1]); }, {streams, normal({tokens, n}, "pre")});
  for (const Implementation how : {Implementation::kReference, Implementation::kMega}) {
    expect_finite_differences([how](const Tensors& x) { return expand(x[0], x[1], x[2], x[3], how); },
                              {normal({tokens, d}, "y"), streams, normal({tokens, n}, "post"), normal({tokens, n, n}, "comb")});
  }
  expect_finite_differences(
      [](const Tensors& x) {
        return boundary(x[0], x[1], x[2], x[3], x[4], {x[5], x[6], x[7], x[8], 1e-2, 1e-2, 4}, Implementation::kMega).in.x;
      },
      {normal({tokens, d}, "y"), streams, normal({tokens, n}, "post"), normal({tokens, n, n}, "comb"),
       normal({tokens, n}, "given"), fn, scale, base, normal({d}, "gain")});
}

INSTANTIATE_TEST_SUITE_P(Sizes, MixCoefficientsTest,
                         ::testing::Values(Mix{3, 4, 5}, Mix{1, 1, 7}, Mix{0, 4, 3}, Mix{5, 2, 1}, Mix{37, 3, 11},
                                           Mix{150, 4, 16}),
                         [](const auto& info) { return "case" + std::to_string(info.index); });

TEST(ExpandTest, Bfloat16StreamsMixInFloatAndRoundOnce) {
  const at::Tensor streams = normal({3, 4, 5}, "streams", at::kBFloat16), y = normal({3, 5}, "y", at::kBFloat16);
  const at::Tensor post = normal({3, 4}, "post", at::kFloat), comb = normal({3, 4, 4}, "comb", at::kFloat);
  for (const Implementation how : {Implementation::kReference, Implementation::kMega}) {
    EXPECT_SAME_BITS(expand(y, streams, post, comb, how),
                     expand(y.to(at::kFloat), streams.to(at::kFloat), post, comb, how).to(at::kBFloat16));
  }
  EXPECT_SAME_BITS(collapse(streams, post), collapse(streams.to(at::kFloat), post).to(at::kBFloat16));
}

struct Write {
  int64_t tokens = 5, n = 3, d = 7;
  at::Tensor streams = normal({tokens, n, d}, "streams"), key = normal({tokens, n, d}, "key"),
             value = normal({tokens, d}, "value");
  at::Tensor q_weight = normal({n, d}, "q"), k_weight = normal({n, d}, "k"), closed = at::zeros({tokens}, at::kBool);
};

// Of streams, key, value, q_weight, k_weight.
std::pair<at::Tensor, at::Tensor> write(const Tensors& x, const at::Tensor& closed, double eps, Implementation how) {
  const at::Tensor kv = at::cat({x[1].reshape({x[1].size(0), -1}), x[2]}, 1);
  return engram_write(x[0], kv, x[3], x[4], closed, eps, how);
}
class EngramWrite : public ::testing::TestWithParam<Implementation> {};
INSTANTIATE_TEST_SUITE_P(Kernels, EngramWrite, ::testing::Values(Implementation::kReference, Implementation::kFused),
                         [](const auto& info) { return std::string(to_string(info.param)); });

TEST_P(EngramWrite, EqualsAPlainLoopAndAClosedGateLeavesTheStream) {
  Write w;
  w.closed[2] = true;
  const double eps = 0.1;
  const auto [gate, out] = write({strided(w.streams), w.key, w.value, w.q_weight, w.k_weight}, w.closed, eps, GetParam());
  for (int64_t t = 0; t < w.tokens; ++t) {
    for (int64_t k = 0; k < w.n; ++k) {
      double dot = 0, x2 = 0, k2 = 0;
      for (int64_t c = 0; c < w.d; ++c) {
        const double x = at3(w.streams, t, k, c), y = at3(w.key, t, k, c);
        dot += x * at2(w.q_weight, k, c) * at2(w.k_weight, k, c) * y, x2 += x * x, k2 += y * y;
      }
      const double d = static_cast<double>(w.d);
      dot /= std::sqrt(x2 / d + eps) * std::sqrt(k2 / d + eps) * std::sqrt(d);
      const double expected = t == 2 ? 0 : sigmoid(std::copysign(std::sqrt(std::max(std::abs(dot), 1e-6)), dot));
      EXPECT_NEAR(at2(gate, t, k), expected, 1e-12);
      for (int64_t c = 0; c < w.d; ++c)
        EXPECT_NEAR(at3(out, t, k, c), at3(w.streams, t, k, c) + expected * at2(w.value, t, c), 1e-12);
    }
  }
  EXPECT_SAME_BITS(out[2], w.streams[2]);
  expect_finite_differences([&](const Tensors& x) { return write(x, w.closed, eps, GetParam()).second; },
                            {w.streams, w.key, w.value, w.q_weight, w.k_weight}, 1e-5);
}

TEST_P(EngramWrite, BelowTheFloorOnlyTheValueGetsAGradient) {
  Write w;
  w.key.mul_(1e-9);  // with eps 1 the dot is far below 1e-6
  const auto f = [&](const Tensors& x) { return write(x, w.closed, 1.0, GetParam()).second; };
  const at::Tensor cotangent = normal(w.streams.sizes(), "cotangent");
  const Tensors g = gradients(f, {w.streams, w.key, w.value, w.q_weight, w.k_weight}, cotangent);
  EXPECT_SAME_BITS(g[0], cotangent);
  for (int i : {1, 3, 4}) EXPECT_EQ(g[i].abs().max().item<double>(), 0) << i;
  EXPECT_GT(g[2].abs().min().item<double>(), 0);
  const auto gate = write({w.streams, w.key, w.value, w.q_weight, w.k_weight}, w.closed, 1.0, GetParam()).first;
  const double up = sigmoid(1e-3), down = sigmoid(-1e-3);  // sign of the dot, size of the floor
  EXPECT_TRUE(((gate - up).abs() < 1e-12).logical_or((gate - down).abs() < 1e-12).all().item<bool>());
}

TEST_P(EngramWrite, NoTokensAreFine) {
  const auto [gate, out] = engram_write(at::ones({0, 3, 7}), at::ones({0, 28}), at::ones({3, 7}), at::ones({3, 7}),
                                        at::zeros({0}, at::kBool), 1e-6, GetParam());
  EXPECT_EQ(gate.sizes(), at::IntArrayRef({0, 3}));
  EXPECT_EQ(out.sizes(), at::IntArrayRef({0, 3, 7}));
}

// Over odd sizes, many tokens (several parts of the gain's gradient) and types; the same bits for any number of threads.
TEST(FusedEngramWrite, EqualsTheReferenceInEveryType) {
  for (const auto& [tokens, n, d] : {std::array<int64_t, 3>{1, 1, 1}, {3, 4, 31}, {7, 2, 64}, {331, 3, 50}, {1300, 1, 17}}) {
    for (const auto& [type, tolerance] :
         {std::pair{at::kDouble, 1e-12}, std::pair{at::kFloat, 2e-5}, std::pair{at::kBFloat16, 0.01}}) {
      const at::Tensor closed = normal({tokens}, "closed") > 0.8, cotangent = normal({tokens, n, d}, "cotangent", type);
      const Tensors inputs{normal({tokens, n, d}, "streams", type), normal({tokens, (n + 1) * d}, "kv", type),
                           normal({n, d}, "q", type == at::kDouble ? at::kDouble : at::kFloat),
                           normal({n, d}, "k", type == at::kDouble ? at::kDouble : at::kFloat)};
      const auto of = [&](Implementation how, const Tensors& given, const at::Tensor& up) {
        const auto f = [&](const Tensors& x) { return engram_write(x[0], x[1], x[2], x[3], closed, 1e-6, how).second; };
        Tensors all = gradients(f, given, up);
        const auto [gate, out] = engram_write(given[0], given[1], given[2], given[3], closed, 1e-6, how);
        all.insert(all.end(), {gate, out});
        return all;
      };
      Tensors in_double;
      for (const at::Tensor& input : inputs) in_double.push_back(input.to(at::kDouble));
      const Tensors exact = of(Implementation::kReference, in_double, cotangent.to(at::kDouble)),
                    reference = of(Implementation::kReference, inputs, cotangent),
                    found = of(Implementation::kFused, inputs, cotangent);
      at::set_num_threads(3);
      const Tensors again = of(Implementation::kFused, inputs, cotangent);
      at::set_num_threads(1);
      for (size_t i = 0; i < found.size(); ++i) {
        const auto off = [&](const at::Tensor& x) { return (x.to(at::kDouble) - exact[i]).norm().item<double>(); };
        // The root of a small dot makes rounding large, for the reference as well.
        EXPECT_LE(off(found[i]), std::max(3 * off(reference[i]), tolerance * (1e-3 + exact[i].norm().item<double>())))
            << i << " in " << type << " of " << d;
        EXPECT_SAME_BITS(found[i], again[i]);
      }
    }
  }
}

}  // namespace
}  // namespace hyperparallel::kernels
