#include "engine/weight.h"

#include "base/error.h"
#include "support/tensors.h"

namespace hyperparallel::engine {
namespace {

using namespace hyperparallel::test;

// One weight of a store, gathered.
struct OneWeight {
  ParameterStore store;
  at::Tensor anchor = at::zeros({}).requires_grad_(true);

  explicit OneWeight(std::vector<int64_t> shape, at::ScalarType master = at::kDouble, at::ScalarType compute = at::kDouble)
      : store({{"w", std::move(shape), ParameterUse::kWeight, false, Initialiser::normal(1.0)}}, master, compute) {
    store.initialise(3);
    store.gather({0});
  }
  Weight handle() { return {&store, {0}, anchor}; }
};

using ByWeight = std::function<at::Tensor(const at::Tensor& x, const Weight&)>;
using ByTensor = std::function<at::Tensor(const at::Tensor& x, const at::Tensor& w)>;

// Compares values and both gradients with plain autograd; `x` may be strided. A second backward doubles the slot.
void expect_equals(OneWeight& one, const at::Tensor& x, const ByWeight& ours, const ByTensor& plain) {
  const at::Tensor w = one.store.master({0});
  const at::Tensor expected = plain(x, w), cotangent = normal(expected.sizes(), "cotangent");
  EXPECT_CLOSE(ours(x, one.handle()), expected, 1e-13);
  const Tensors derived = gradients([&](const Tensors& in) { return plain(in[0], in[1]); }, {x, w}, cotangent);
  one.store.clear_gradients();
  for (int times : {1, 2}) {
    const at::Tensor dx = gradients([&](const Tensors& in) { return ours(in[0], one.handle()); }, {x}, cotangent)[0];
    EXPECT_CLOSE(dx, derived[0], 1e-13);
    ASSERT_TRUE(one.store.has_slot({0}));
    EXPECT_CLOSE(one.store.slot({0}), derived[1] * times, 1e-13);
  }
  one.store.clear_gradients();
  one.store.set_trainable({0}, false);
  EXPECT_CLOSE(gradients([&](const Tensors& in) { return ours(in[0], one.handle()); }, {x}, cotangent)[0], derived[0], 1e-13);
  EXPECT_FALSE(one.store.has_slot({0}));
  one.store.set_trainable({0}, true);
}

TEST(WeightLinear, EqualsPlainAutogradAtOddSizes) {
  for (std::vector<int64_t> rows : {std::vector<int64_t>{0}, {1}, {7}, {2, 3}, {0, 3}}) {
    OneWeight one({5, 3});
    rows.push_back(3);
    const at::Tensor x = normal(rows, "x");
    for (const at::Tensor& input : {x, strided(x)}) {
      expect_equals(
          one, input, [](const at::Tensor& in, const Weight& w) { return linear(in, w); },
          [](const at::Tensor& in, const at::Tensor& w) { return at::linear(in, w); });
    }
  }
}

TEST(WeightBlockLinear, EqualsPlainAutogradAtOddSizes) {
  for (int64_t tokens : {0, 1, 7}) {
    OneWeight one({3 * 2, 5});
    const at::Tensor x = normal({tokens, 3, 5}, "x");
    for (const at::Tensor& input : {x, strided(x)}) {
      expect_equals(
          one, input, [](const at::Tensor& in, const Weight& w) { return block_linear(in, w); },
          [](const at::Tensor& in, const at::Tensor& w) {
            return at::einsum("tbi,boi->tbo", {in, w.view({3, 2, 5})}).reshape({in.size(0), 6});
          });
    }
  }
}

TEST(WeightGroupedLinear, EqualsPlainAutogradWithGroupsWithoutRows) {
  for (const std::vector<int64_t>& borders :
       {std::vector<int64_t>{0, 0, 0, 0, 0}, {0, 7, 7, 7, 7}, {0, 0, 3, 3, 4}, {0, 1, 6, 13, 13}}) {
    OneWeight one({4, 5, 3});
    const at::Tensor offsets = integers(borders), x = normal({borders.back(), 3}, "x");
    for (const at::Tensor& input : {x, strided(x)}) {
      expect_equals(
          one, input, [&](const at::Tensor& in, const Weight& w) { return grouped_linear(in, offsets, w); },
          [&](const at::Tensor& in, const at::Tensor& w) {
            Tensors parts;
            for (int64_t g = 0; g < 4; ++g) parts.push_back(at::linear(in.slice(0, borders[g], borders[g + 1]), w[g]));
            return at::cat(parts);
          });
    }
  }
}

TEST(WeightEmbedding, NegativeIdsGiveZerosAndRepeatsAdd) {
  for (const std::vector<int64_t>& list : {std::vector<int64_t>{}, {2}, {4, -1, 2, 4, 4, -1, 0}}) {
    OneWeight one({5, 3});
    const at::Tensor ids = integers(list), w = one.store.master({0}), cotangent = normal({ids.size(0), 3}, "cotangent");
    const auto plain = [&](const at::Tensor& table) { return table.index_select(0, ids.clamp_min(0)) * ids.ge(0).unsqueeze(1); };
    const at::Tensor rows = embedding(ids, one.handle());
    EXPECT_SAME_BITS(rows, plain(w));
    torch::autograd::grad({rows}, {one.anchor}, {cotangent}, std::nullopt, false, true);
    EXPECT_CLOSE(one.store.slot({0}), gradients([&](const Tensors& in) { return plain(in[0]); }, {w}, cotangent)[0], 1e-14);
  }
}

TEST(WeightCrossEntropy, EqualsPlainAutogradInChunksOfEverySizeWithAndWithoutZLoss) {
  for (const auto& [words, list] : {std::pair<int64_t, std::vector<int64_t>>{7, {}},
                                    {7, {-100}},
                                    {7, {3}},
                                    {7, {-100, 0, 6, 6, -100, 2, 5}},
                                    {53, {52, 17, -100, 0, 31}}}) {
    OneWeight one({words, 3});
    const at::Tensor targets = integers(list), x = normal({targets.size(0), 3}, "x", at::kDouble, 3);
    for (int64_t chunk : {1, 2, 64}) {
      for (const at::Tensor& input : {x, strided(x)}) {
        for (double z : {0.0, 0.3}) {
          expect_equals(
              one, input,
              [&](const at::Tensor& in, const Weight& w) {
                const CrossEntropy found = linear_cross_entropy(in, targets, w, chunk, {}, z);
                EXPECT_CLOSE(found.sum.detach(), found.token_loss.sum(), 1e-14);
                return z > 0 ? found.sum + z * found.squares : found.sum;
              },
              [&](const at::Tensor& in, const at::Tensor& w) {
                const at::Tensor logits = at::linear(in, w);
                const at::Tensor loss = -at::log_softmax(logits, 1).gather(1, targets.clamp_min(0).unsqueeze(1)).squeeze(1);
                return ((loss + z * logits.logsumexp(1).square()) * targets.ge(0)).sum();
              });
        }
      }
    }
  }
}

TEST(WeightCrossEntropy, ALogitThatIsNotFiniteMakesTheLossNotFinite) {
  for (const double bad : {std::nan(""), HUGE_VAL, -HUGE_VAL}) {
    OneWeight one({40, 3}, at::kFloat, at::kFloat);
    one.store.master({0})[9][0].fill_(bad);  // of another word than the targets
    one.store.gather({0});
    EXPECT_FALSE(linear_cross_entropy(at::ones({2, 3}), integers({5, 6}), one.handle(), 8).sum.isfinite().item<bool>()) << bad;
  }
}

TEST(WeightCrossEntropy, Bfloat16StaysNearFP64) {
  OneWeight low({301, 32}, at::kFloat, at::kBFloat16), wide({301, 32});
  wide.store.master({0}).copy_(low.store.compute({0}));
  wide.store.gather({0});
  // Logits of about 10 are rounded by about 0.02.
  const at::Tensor x = normal({77, 32}, "x", at::kBFloat16), targets = at::arange(77) * 3;
  const auto loss = [&](OneWeight& one, const Tensors& in) { return linear_cross_entropy(in[0], targets, one.handle(), 20).sum; };
  const Tensors exact{x.to(at::kDouble)};
  EXPECT_CLOSE(loss(low, {x}), loss(wide, exact), 0.002);
  EXPECT_CLOSE(gradients([&](const Tensors& in) { return loss(low, in); }, {x}, at::ones({}))[0],
               gradients([&](const Tensors& in) { return loss(wide, in); }, exact, at::ones({}, at::kDouble))[0], 0.03);
  EXPECT_CLOSE(low.store.slot({0}), wide.store.slot({0}), 0.03);
}

TEST(WeightTypes, Bfloat16ProductsAddIntoAFloatSlot) {
  OneWeight one({33, 17}, at::kFloat, at::kBFloat16);
  const at::Tensor x = normal({129, 17}, "x", at::kBFloat16), cotangent = normal({129, 33}, "cotangent", at::kBFloat16);
  // 64 times the same gradient: a BF16 slot would stop growing.
  for (int i = 0; i < 64; ++i) gradients([&](const Tensors& in) { return linear(in[0], one.handle()); }, {x}, cotangent);
  const at::Tensor expected = 64 * at::mm(cotangent.to(at::kDouble).t(), x.to(at::kDouble));
  EXPECT_EQ(one.store.slot({0}).scalar_type(), at::kFloat);
  EXPECT_CLOSE(one.store.slot({0}), expected, 0.004);  // one rounding of each product
  const at::Tensor y = linear(x, one.handle());
  EXPECT_EQ(y.scalar_type(), at::kBFloat16);
}

TEST(WeightTypes, AFloatInputMeetsTheRoundedWeightInFloat) {
  OneWeight one({5, 3}, at::kFloat, at::kBFloat16);
  const at::Tensor x = normal({7, 3}, "x", at::kFloat), y = linear(x, one.handle());
  EXPECT_EQ(y.scalar_type(), at::kFloat);
  EXPECT_SAME_BITS(y, at::linear(x, one.store.master({0}).to(at::kBFloat16).to(at::kFloat)));
}

TEST(WeightLifetime, AReleasedWeightIsRefusedAndBackwardTakesTheWeightGatheredThen) {
  OneWeight one({5, 3});
  const at::Tensor x = normal({7, 3}, "x").requires_grad_(true), y = linear(x, one.handle());
  one.store.release({0});
  EXPECT_THROW(linear(x, one.handle()), InternalError);
  EXPECT_THROW(torch::autograd::grad({y}, {x}, {at::ones_like(y)}, true),
               InternalError);  // the graph holds no tensor of the weight
  one.store.gather({0});
  EXPECT_CLOSE(torch::autograd::grad({y}, {x}, {at::ones_like(y)})[0], at::ones_like(y).matmul(one.store.master({0})), 1e-14);
}

TEST(Parameters, StartFromSeedNameAndIndexAlone) {
  const auto make = [](const std::string& name, uint64_t seed) {
    ParameterStore store({{"other", {3}, ParameterUse::kLeaf, false, Initialiser::fill(2)},
                          {name, {4, 5}, ParameterUse::kWeight, false, Initialiser::normal(0.5)}},
                         at::kFloat, at::kFloat);
    store.initialise(seed);
    EXPECT_SAME_BITS(store.master(store.find("other")), at::full({3}, 2.0));
    return store.master(store.find(name)).clone();
  };
  EXPECT_SAME_BITS(make("w", 1), make("w", 1));
  EXPECT_FALSE(same_bits(make("w", 1), make("w", 2)));
  EXPECT_FALSE(same_bits(make("w", 1), make("v", 1)));
  EXPECT_NEAR(make("w", 1).std().item<double>(), 0.5, 0.3);
  ParameterStore given({{"w", {2}, ParameterUse::kLeaf, false, Initialiser::from({1, -2})}}, at::kFloat, at::kFloat);
  given.initialise(0);
  EXPECT_SAME_BITS(given.master({0}), at::tensor({1.0f, -2.0f}));
  EXPECT_THROW(given.find("v"), InternalError);
  const ParameterSpec spec{"w", {1}, ParameterUse::kLeaf, false, {}};
  EXPECT_THROW(ParameterStore({spec, spec}, at::kFloat, at::kFloat), InternalError);
}

}  // namespace
}  // namespace hyperparallel::engine
