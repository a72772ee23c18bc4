// The golden cases in every layout of two and four ranks that their sizes allow.
#include <iostream>

#include "base/error.h"
#include "dist/thread_comm.h"
#include "support/tensors.h"
#include "train/verify.h"

namespace hyperparallel::train {
namespace {

struct Layout {
  std::string name;
  int ranks;
  std::vector<std::string> overrides;
};

using Parameters = std::tuple<std::string, Layout>;
class GoldenLayout : public ::testing::TestWithParam<Parameters> {};

TEST_P(GoldenLayout, Holds) {
  const auto& [name, layout] = GetParam();
  const std::filesystem::path folder = std::filesystem::path(HP_SOURCE_DIR) / "tests/golden/model" / name;
  VerifyOptions options;
  options.config = config_of_overrides(layout.overrides, {"parallel", "recompute"});
  // Four ranks sum in an order whose rounding is 10.5 e in one scale of mHC, a sum that cancels: not FP32's 10 e, so held in
  // double.
  options.float64 = name == "vlm-tiny" && layout.name == "Tp2Cp2";
  std::vector<VerifyReport> reports(layout.ranks);
  check_case_layout(folder, options, layout.ranks);
  dist::run_ranks(layout.ranks, {}, [&](dist::World& world) { reports[world.rank()] = verify_case(folder, options, &world); });
  for (const VerifyRow& row : reports[0].rows) {
    EXPECT_TRUE(row.pass) << row.name << " " << row.shape << ": " << row.absolute << " > " << row.limit;
  }
  EXPECT_TRUE(reports[0].not_compared.empty());
  EXPECT_EQ(reports[0].rows[0].name.starts_with("tie:"), reports[0].ties > 0);
  if (reports[0].ties > 0) std::cout << "ties: " << reports[0].ties << '\n';
  EXPECT_EQ(reports.back().rows.size(), reports[0].rows.size());
  EXPECT_EQ(reports.back().worst().absolute, reports[0].worst().absolute);
}

const std::vector<std::string> kCases = {"swa-only", "csa2-small", "quant-blocks", "csa2-engram", "packed",
                                         "bf16",     "bf16-swa",   "vision-tiny",  "vlm-tiny"};
const std::vector<Layout> kLayouts = {
    {"Tp2", 2, {"--parallel.tp=2"}},
    {"Tp2Sp", 2, {"--parallel.tp=2", "--parallel.sequence_parallel"}},
    {"Cp2", 2, {"--parallel.cp=2"}},
    {"Cp2Balanced", 2, {"--parallel.cp=2", "--parallel.cp_shard=balanced", "--recompute.mode=full"}},
    {"Ep2", 2, {"--parallel.ep=2"}},
    {"Cp2Ep2Replicated", 2, {"--parallel.cp=2", "--parallel.ep=2", "--parallel.fsdp_shard=1", "--parallel.fsdp_replicate=2"}},
    {"Tp2Cp2", 4, {"--parallel.tp=2", "--parallel.cp=2"}},
    {"Tp2Cp2Ep4Sp", 4, {"--parallel.tp=2", "--parallel.cp=2", "--parallel.ep=4", "--parallel.sequence_parallel"}},
    {"Tp2Cp2Ep2Balanced", 4, {"--parallel.tp=2", "--parallel.cp=2", "--parallel.ep=2", "--parallel.cp_shard=balanced"}}};

INSTANTIATE_TEST_SUITE_P(Model, GoldenLayout, ::testing::Combine(::testing::ValuesIn(kCases), ::testing::ValuesIn(kLayouts)),
                         [](const auto& info) {
                           std::string name = std::get<0>(info.param) + "_" + std::get<1>(info.param).name;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(GoldenLayout, DegreesThatDoNotFitAreRefusedByName) {
  const std::filesystem::path folder = std::filesystem::path(HP_SOURCE_DIR) / "tests/golden/model/csa2-small";
  const auto refusal = [&](const std::vector<std::string>& overrides, int64_t ranks) -> std::string {
    try {
      VerifyOptions options;
      options.config = config_of_overrides(overrides, {"parallel"});
      check_case_layout(folder, options, ranks);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_NE(refusal({"--parallel.tp=4"}, 4).find("parallel.tp 4 does not divide o_groups 2; accepted: 1, 2"), std::string::npos);
  EXPECT_NE(refusal({"--parallel.tp=2"}, 3).find("does not divide the 3 ranks"), std::string::npos);
  EXPECT_NE(refusal({"--train.steps=2"}, 1).find("--train.*: not used here"), std::string::npos);
}

}  // namespace
}  // namespace hyperparallel::train
