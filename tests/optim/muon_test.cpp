#include "optim/muon.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "dist/thread_comm.h"
#include "engine/parameter.h"
#include "golden.h"

namespace hyperparallel::optim {
namespace {

Box whole(const std::vector<int64_t>& shape) {
  return {std::vector<int64_t>(shape.size(), 0), shape};
}

// The blocks of rows that a case's `slices` asks for.
std::vector<int64_t> blocks_of(const std::string& name, const std::string& slices) {
  if (slices == "whole" || slices.ends_with("along axis 0")) return {};
  if (name == "muon/vision-qkv" || name == "vision-qkv") return {4, 4, 4, 4, 4, 4, 12};
  return std::vector<int64_t>(std::stol(slices), std::stol(slices.substr(slices.find("of ") + 3)));
}

MuonSettings settings_of(const nlohmann::json& all, const nlohmann::json& golden) {
  MuonSettings settings;
  settings.momentum = golden.at("momentum");
  settings.eps = golden.at("eps");
  settings.update_scale = golden.at("update_scale");
  settings.steps = all.at("coefficient_sets").at(golden.at("coefficients").get<std::string>()).get<NewtonSchulzSteps>();
  return settings;
}

class GoldenMuon : public testing::TestWithParam<at::ScalarType> {};

void expect_near(const at::Tensor& actual, const at::Tensor& expected, const nlohmann::json& error, double double_limit,
                 const std::string& what) {
  const double m = error[1];
  const double limit = actual.scalar_type() == at::kDouble ? double_limit * m : std::max(10 * error[0].get<double>(), 2e-6 * m);
  EXPECT_LE((actual.to(at::kDouble) - expected).abs().max().item<double>(), limit) << what;
}

TEST_P(GoldenMuon, FourStepsHold) {
  const auto tensors = golden_tensors("muon.safetensors");
  const nlohmann::json all = golden_json("muon.json");
  for (const auto& [name, golden] : all.at("cases").items()) {
    const auto fixture = [&](const std::string& key) { return tensors.at(name + "/" + key); };
    std::vector<OptimizedParameter> parameters = {{name, fixture("param.0").to(GetParam()), {}}};
    const std::vector<int64_t> shape = parameters[0].value.sizes().vec();
    const std::vector<ParameterSettings> settings = {{Rule::kMuon, 1, golden.at("weight_decay")}};
    Muon optimizer(parameters, settings, settings_of(all, golden),
                   {{{whole(shape)}, matrices_of(shape, blocks_of(name, golden.at("slices")))}}, dist::self_group());
    const double limit = name == "rank3" ? 1e-10 : 1e-11;
    for (int t = 1; t <= 4; ++t) {
      const std::string step = "." + std::to_string(t);
      parameters[0].gradient = fixture("grad" + step).to(GetParam());
      const at::Tensor before = parameters[0].value.clone();
      const double lr = golden.at("lr")[t - 1], decay = golden.at("weight_decay");
      optimizer.step(parameters, lr, 1);
      const auto& errors = golden.at("fp32_error");
      expect_near(parameters[0].value, fixture("param" + step), errors.at("param" + step), limit, name + " param" + step);
      expect_near(optimizer.state()[0].value, fixture("momentum" + step), errors.at("momentum" + step), limit,
                  name + " momentum" + step);
      if (GetParam() == at::kDouble) {
        const at::Tensor update = (before * (1 - lr * decay) - parameters[0].value) / lr;
        EXPECT_LE((update - fixture("update" + step)).abs().max().item<double>(),
                  std::max(1e-11, limit * errors.at("update" + step)[1].get<double>()))
            << name << " update" << step;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dtypes, GoldenMuon, testing::Values(at::kFloat, at::kDouble),
                         [](const auto& info) { return std::string(at::toString(info.param)); });

TEST(NewtonSchulz, ASingularValueGoesThroughThePublishedNumbers) {
  for (const auto& [start, values] : golden_json("muon.json").at("singular_value_after_each_step").items()) {
    // Of a matrix with these singular values divided by their norm: undo the division, which is no part of the steps.
    const double value = std::stod(start);
    for (size_t step = 0; step < values.size(); ++step) {
      NewtonSchulzSteps steps = deepseek_steps();
      steps.resize(step + 1);
      const double other = std::sqrt(1 - value * value);
      const at::Tensor n = at::stack({at::tensor({value, 0.0}, at::kDouble), at::tensor({0.0, other}, at::kDouble)});
      EXPECT_NEAR(newton_schulz(n.unsqueeze(0), steps, 0, at::kDouble)[0][0][0].item<double>(), values[step].get<double>(),
                  1e-12);
    }
  }
}

TEST(NewtonSchulz, InBfloat16StaysWithinItsStatedError) {
  const auto tensors = golden_tensors("muon.safetensors");
  const nlohmann::json all = golden_json("muon.json");
  for (const std::string name : {"tall", "wide", "square", "row", "column", "tiny"}) {
    const nlohmann::json& golden = all.at("cases").at(name);
    MuonSettings settings = settings_of(all, golden);
    settings.compute = at::kBFloat16;
    std::vector<OptimizedParameter> parameters = {{name, tensors.at(name + "/param.0").clone(), {}}};
    const std::vector<int64_t> shape = parameters[0].value.sizes().vec();
    const std::vector<ParameterSettings> rates = {{Rule::kMuon, 1, 0}};
    Muon optimizer(parameters, rates, settings, {{{whole(shape)}, matrices_of(shape)}}, dist::self_group());
    for (int t = 1; t <= 4; ++t) {
      parameters[0].gradient = tensors.at(name + "/grad." + std::to_string(t));
      const at::Tensor before = parameters[0].value.to(at::kDouble);
      optimizer.step(parameters, 1, 1);
      const at::Tensor update = before - parameters[0].value.to(at::kDouble),
                       expected = tensors.at(name + "/update." + std::to_string(t));
      EXPECT_GE(((update * expected).sum() / (update.norm() * expected.norm())).item<double>(), 0.998) << name;
      EXPECT_LE((update - expected).square().mean().sqrt().item<double>(), 0.012) << name;
    }
  }
}

// Parameters of every kind, their start values and gradients.
struct Case {
  std::vector<int64_t> shape, rows;
};
const std::vector<Case>& cases() {
  static const std::vector<Case> all{{{7, 5}, {}}, {{12, 5}, {4, 4, 4}}, {{3, 5, 8}, {}}, {{10, 6}, {2, 2, 6}}, {{1, 9}, {}}};
  return all;
}
at::Tensor values(const Case& c, double phase) {
  return at::sin(at::arange(volume(c.shape), at::kDouble) * 0.7 + phase).reshape(c.shape);
}

// Every parameter in parts over `ranks`: by dimension 0 or the last, unevenly, with empty parts; the last rank has what the first
// has when `replicated`.
std::vector<Box> parts(const Case& c, int ranks, bool replicated) {
  const int shards = replicated ? ranks - 1 : ranks;
  const size_t dim = c.shape.size() == 3 ? 1 : c.shape[0] == 10 ? 1 : 0;
  std::vector<Box> boxes;
  int64_t first = 0;
  for (int rank = 0; rank < shards; ++rank) {
    Box box = whole(c.shape);
    const int64_t left = c.shape[dim] - first;
    box.offset[dim] = first;
    box.size[dim] = rank + 1 == shards ? left : std::min<int64_t>(left, 1 + 2 * (rank % 2));
    first += box.size[dim];
    boxes.push_back(box);
  }
  if (replicated) boxes.push_back(boxes[0]);
  return boxes;
}
at::Tensor part_of(const at::Tensor& tensor, const Box& box) {
  return engine::narrow_to(tensor, box).contiguous();
}

TEST(MuonOverRanks, EveryRankGetsItsPartOfWhatOneRankComputes) {
  std::vector<at::Tensor> expected;
  {
    std::vector<OptimizedParameter> parameters;
    std::vector<ParameterSettings> settings;
    std::vector<MatrixSource> sources;
    for (size_t i = 0; i < cases().size(); ++i) {
      parameters.push_back({std::to_string(i), values(cases()[i], 0), values(cases()[i], 1)});
      settings.push_back({Rule::kMuon, 1 + static_cast<double>(i), 0.1});
      sources.push_back({{whole(cases()[i].shape)}, matrices_of(cases()[i].shape, cases()[i].rows)});
    }
    parameters[4].gradient = at::Tensor();  // no gradient, on no rank
    Muon optimizer(parameters, settings, {}, sources, dist::self_group());
    for (int step = 0; step < 3; ++step) optimizer.step(parameters, 0.01, 0.5);
    for (const OptimizedParameter& parameter : parameters) expected.push_back(parameter.value);
    EXPECT_TRUE(expected[4].equal(values(cases()[4], 0)));
  }
  for (const int ranks : {2, 3, 5}) {
    for (const bool replicated : {false, true}) {
      for (const int64_t wave : {1, 20, 1 << 20}) {
        dist::run_ranks(ranks, {}, [&](dist::World& world) {
          std::vector<int> members(ranks);
          std::iota(members.begin(), members.end(), 0);
          const auto group = world.make_group({.name = "stage", .members = members});
          std::vector<OptimizedParameter> parameters;
          std::vector<ParameterSettings> settings;
          std::vector<MatrixSource> sources;
          for (size_t i = 0; i < cases().size(); ++i) {
            const std::vector<Box> owned = parts(cases()[i], ranks, replicated);
            const Box& own = owned[world.rank()];
            parameters.push_back({std::to_string(i), part_of(values(cases()[i], 0), own), part_of(values(cases()[i], 1), own)});
            settings.push_back({Rule::kMuon, 1 + static_cast<double>(i), 0.1});
            sources.push_back({owned, matrices_of(cases()[i].shape, cases()[i].rows)});
          }
          parameters[4].gradient = at::Tensor();
          MatrixExchange exchange(sources, group, wave);
          std::vector<at::Tensor> local;
          for (const OptimizedParameter& parameter : parameters) local.push_back(parameter.gradient);
          const auto same = exchange.run(
              local, [](const at::Tensor& n) { return n; }, "identity");
          for (size_t i = 0; i < local.size(); ++i) {
            EXPECT_EQ(same[i].defined(), local[i].defined());
            if (!local[i].defined()) continue;
            EXPECT_TRUE(same[i].equal(local[i])) << i;
          }
          Muon optimizer(parameters, settings, {}, sources, group);
          for (int step = 0; step < 3; ++step) optimizer.step(parameters, 0.01, 0.5);
          for (size_t i = 0; i < parameters.size(); ++i) {
            const at::Tensor mine = part_of(expected[i], parts(cases()[i], ranks, replicated)[world.rank()]);
            if (mine.numel() == 0) continue;
            EXPECT_LE((parameters[i].value - mine).abs().max().item<double>(), 1e-12) << i << " on rank " << world.rank();
          }
        });
      }
    }
  }
}

TEST(MuonOverRanks, AMatrixThatLiesWholeOnARankStaysThereAndWorkIsSpread) {
  // Two experts, each on a rank of its own, and a matrix that both have half of.
  const Box first{{0, 0, 0}, {1, 8, 4}}, second{{1, 0, 0}, {1, 8, 4}};
  const MatrixSource experts{{first, second}, matrices_of({2, 8, 4})};
  const MatrixSource shared{{Box{{0, 0}, {4, 8}}, Box{{4, 0}, {4, 8}}}, matrices_of({8, 8})};
  dist::run_ranks(2, {}, [&](dist::World& world) {
    const auto group = world.make_group({.name = "stage", .members = {0, 1}});
    const MatrixExchange exchange({experts, shared, shared}, group);
    EXPECT_THAT(exchange.work(), testing::ElementsAre(8 * 4 * 4 + 512, 8 * 4 * 4 + 512));
  });
}

}  // namespace
}  // namespace hyperparallel::optim
