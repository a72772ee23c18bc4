#include "optim/mix.h"

#include <gmock/gmock.h>

#include "base/error.h"
#include "dist/group.h"
#include "support/scratch.h"

namespace hyperparallel::optim {
namespace {

using engine::ParameterSpec;
using engine::UpdateHint;

ParameterSpec spec(const std::string& name, std::vector<int64_t> shape, UpdateHint update) {
  ParameterSpec spec;
  spec.name = name;
  spec.shape = std::move(shape);
  spec.update = std::move(update);
  return spec;
}

std::vector<ParameterSpec> some_specs() {
  return {spec("layers.0.heads", {6, 5}, UpdateHint::blocks("head", {2, 2, 2})),
          spec("layers.0.experts", {2, 4, 3}, UpdateHint::matrix()),
          spec("layers.0.gain", {7}, UpdateHint::gain()),
          spec("layers.0.bias", {7}, UpdateHint::vector()),
          spec("ngrams", {9, 4}, UpdateHint::table(5)),
          spec("layers.0.gains", {3, 7}, UpdateHint::gain())};
}

std::vector<std::string> described(const GroupDefaults& defaults, const std::vector<GroupRule>& groups, bool head_wise = true) {
  RuleSettings rules;
  rules.head_wise = head_wise;
  const auto specs = some_specs();
  const auto settings = resolve_groups(specs, defaults, groups);
  std::vector<std::string> lines;
  for (size_t i = 0; i < specs.size(); ++i) lines.push_back(describe(specs[i], settings[i], rules));
  return lines;
}

TEST(Groups, WithAdamWWhatHasTwoDimensionsDecays) {
  EXPECT_THAT(described({}, {}), testing::ElementsAre("adamw, decay 0.1", "adamw, decay 0.1", "adamw", "adamw",
                                                      "adamw, decay 0.1", "adamw, decay 0.1"));
}

TEST(Groups, AsDeclaredMatricesTablesAndVectorsHaveTheirRules) {
  EXPECT_THAT(described({.as_declared = true}, {}),
              testing::ElementsAre("muon, 3 heads of [2, 5], decay 0.1", "muon, 2 of [4, 3], decay 0.1", "adamw, decay 0.1",
                                   "adamw", "sinkhorn, lr x 5", "adamw, decay 0.1"));
  EXPECT_EQ(described({.as_declared = true}, {}, /*head_wise=*/false)[0], "muon, decay 0.1");
}

TEST(Groups, RulesOverrideInOrder) {
  const std::vector<GroupRule> rules = {{.match = "layers.*", .lr_scale = 2.0},
                                        {.match = "*.gain", .lr_scale = 0.5, .weight_decay = 0.3},
                                        {.match = "*heads", .rule = Rule::kMuon},
                                        {.match = "ngrams", .rule = Rule::kSinkhorn}};
  EXPECT_THAT(described({}, rules),
              testing::ElementsAre("muon, 3 heads of [2, 5], lr x 2, decay 0.1", "adamw, lr x 2, decay 0.1",
                                   "adamw, lr x 0.5, decay 0.3", "adamw, lr x 2", "sinkhorn", "adamw, lr x 2, decay 0.1"));
}

TEST(Groups, WhatARuleCannotDoIsRefusedByName) {
  const auto expect_refusal = [](const GroupRule& rule, const std::string& text) {
    try {
      described({.as_declared = true}, {rule});
      FAIL() << text;
    } catch (const ConfigError& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr(text));
    }
  };
  expect_refusal({.match = "layer.*"}, "`layer.*` matches none of the model's 6 parameters");
  expect_refusal({.match = "*.bias", .rule = Rule::kMuon}, "muon is for matrices, but layers.0.bias has 1 dimension");
  expect_refusal({.match = "*experts", .rule = Rule::kSinkhorn}, "layers.0.experts has 3");
  expect_refusal({.match = "ngrams", .weight_decay = 0.1}, "sinkhorn has no weight decay, but ngrams has 0.1");
}

TEST(MixedOptimizer, SinkhornOfColumnsThatLieOnSeveralRanksIsRefused) {
  std::vector<ParameterSpec> specs{spec("down", {4, 6}, UpdateHint::matrix())};
  specs[0].cut_axis = "tp";
  specs[0].cut_dim = 1;
  engine::Layout layout;
  layout.mesh = dist::Mesh(2, {.tp = 2});
  const std::vector<OptimizedParameter> parameters{{"down", at::zeros({4, 3}), {}}};
  const std::vector<ParameterSettings> settings{{Rule::kSinkhorn, 1, 0}};
  EXPECT_THROW(MixedOptimizer(parameters, specs, settings, {}, layout, dist::self_group()), ConfigError);
}

// Parameters of all rules, and how they move in three steps.
std::vector<at::Tensor> moved(const std::vector<GroupRule>& groups, const std::vector<double>& rates, const RuleSettings& rules) {
  const auto specs = some_specs();
  const auto settings = resolve_groups(specs, {.as_declared = true}, groups);
  std::vector<OptimizedParameter> parameters;
  for (const ParameterSpec& s : specs) {
    const at::Tensor wave = at::arange(volume(s.shape), at::kFloat).add(0.3).reshape(s.shape);
    parameters.push_back({s.name, at::sin(wave), at::cos(wave * 1.7)});
  }
  MixedOptimizer mixed(parameters, specs, settings, rules, {}, dist::self_group());
  for (int step = 0; step < 3; ++step) {
    mixed.prefetch();
    mixed.step(parameters, rates, 0.5);
  }
  std::vector<at::Tensor> values;
  for (const OptimizedParameter& parameter : parameters) values.push_back(parameter.value);
  for (const StateTensor& tensor : mixed.state()) values.push_back(tensor.value);
  return values;
}

void expect_same(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(a[i].equal(b[i])) << i;
}

TEST(MixedOptimizer, StateInFilesHasTheBitsOfThatInMemory) {
  const Scratch folder;
  RuleSettings in_files;
  in_files.state_folder = folder.path();
  expect_same(moved({}, {0.01}, {}), moved({}, {0.01}, in_files));
}

TEST(MixedOptimizer, AGroupFollowsItsOwnSchedule) {
  const auto all = moved({}, {0.01}, {}), other = moved({{.match = "layers.0.*", .schedule = 1}}, {0.02, 0.01}, {}),
             ngrams = moved({}, {0.02}, {});
  for (size_t i : {0, 1, 2, 3, 5}) EXPECT_TRUE(other[i].equal(all[i])) << i;
  EXPECT_TRUE(other[4].equal(ngrams[4]));
  EXPECT_FALSE(other[4].equal(all[4]));
}

TEST(MixedOptimizer, EachParameterMovesAsItsRuleAlone) {
  const auto specs = some_specs();
  const auto settings = resolve_groups(specs, {.as_declared = true}, {});
  const auto fresh = [&] {
    std::vector<OptimizedParameter> parameters;
    for (const ParameterSpec& s : specs) {
      const at::Tensor wave = at::arange(volume(s.shape), at::kDouble).add(0.3).reshape(s.shape);
      parameters.push_back({s.name, at::sin(wave), at::cos(wave * 1.7)});
    }
    return parameters;
  };
  auto parameters = fresh();
  const engine::Layout layout;
  MixedOptimizer mixed(parameters, specs, settings, {}, layout, dist::self_group());
  for (int step = 0; step < 3; ++step) mixed.step(parameters, 0.01, 0.5);
  const auto alone = [&](size_t i, auto&& make) {
    std::vector<OptimizedParameter> one{fresh()[i]};
    const std::vector<ParameterSettings> own{settings[i]};
    const auto optimizer = make(std::span<const OptimizedParameter>(one), std::span<const ParameterSettings>(own));
    for (int step = 0; step < 3; ++step) optimizer->step(one, 0.01, 0.5);
    EXPECT_TRUE(parameters[i].value.equal(one[0].value)) << specs[i].name;
    EXPECT_FALSE(parameters[i].value.equal(fresh()[i].value)) << specs[i].name;
  };
  for (size_t i : {2, 3, 5}) alone(i, [](auto p, auto s) { return std::make_unique<AdamW>(p, s, AdamWSettings{}); });
  for (size_t i : {0, 1}) {
    const Box whole{std::vector<int64_t>(specs[i].shape.size(), 0), specs[i].shape};
    const MatrixSource source{{whole}, matrices_of(specs[i].shape, specs[i].update.block_rows)};
    alone(i, [&](auto p, auto s) {
      return std::make_unique<Muon>(p, s, MuonSettings{}, std::vector<MatrixSource>{source}, dist::self_group());
    });
  }
  alone(4, [](auto p, auto s) {
    return std::make_unique<Sinkhorn>(p, s, SinkhornSettings{}, std::vector<TableRows>{{9, true}}, dist::self_group());
  });
  std::vector<std::string> names;
  for (const StateTensor& tensor : mixed.state()) names.push_back(tensor.name());
  EXPECT_THAT(names, testing::UnorderedElementsAre("layers.0.heads.momentum", "layers.0.experts.momentum", "ngrams.momentum",
                                                   "layers.0.gain.exp_avg", "layers.0.gain.exp_avg_sq", "layers.0.gain.step",
                                                   "layers.0.bias.exp_avg", "layers.0.bias.exp_avg_sq", "layers.0.bias.step",
                                                   "layers.0.gains.exp_avg", "layers.0.gains.exp_avg_sq", "layers.0.gains.step"));
  EXPECT_THAT(mixed.seconds(), testing::SizeIs(3));
}

}  // namespace
}  // namespace hyperparallel::optim
