// The same as processes over MPI, started by the program: metrics.jsonl and the checkpoint against one rank.
#include <fstream>
#include <nlohmann/json.hpp>

#include "checkpoint/store.h"
#include "cli/program.h"
#include "parity/run.h"

namespace hyperparallel::parity {
namespace {

class Processes : public testing::TestWithParam<Layout> {};

// Losses, norms and parameters at the end.
Outcome train_as_processes(const Layout& layout) {
  const TemporaryFolder folder;
  const std::filesystem::path output = folder.path() / "run";
  std::string command = fmt::format("train configs/tiny.yaml --ranks {} '--train.output={}' --validation.generate_samples=0",
                                    layout.ranks, output.string());
  for (const std::string& override : tiny_overrides(layout.overrides)) command += " '" + override + "'";
  const ProgramResult result = run_program(command + " --checkpoint.interval=0");
  Outcome found;
  EXPECT_EQ(result.code, 0) << result.error;
  if (result.code != 0) return found;
  std::ifstream lines(output / "metrics.jsonl");
  for (std::string line; std::getline(lines, line);) {
    found.losses.push_back(nlohmann::json::parse(line).at("loss"));
    found.norms.push_back(nlohmann::json::parse(line).at("grad_norm"));
  }
  const checkpoint::Checkpoint checkpoint = checkpoint::CheckpointStore(output / "checkpoints").open(kSteps);
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    if (name.find('/') == std::string::npos) found.parameters[name] = checkpoint.load(name);
  }
  return found;
}

TEST_P(Processes, EqualOneRank) {
  const Outcome found = train_as_processes(GetParam());
  ASSERT_FALSE(HasFailure());
  expect_loss_and_norm(found.losses, found.norms);
  ASSERT_EQ(found.parameters.size(), one_rank().parameters.size());
  expect_later_steps(GetParam(), found, train_as_processes);
}

// 12 layouts of 2, 4 and 8 ranks, those with the most pairs; two of them in a short run.
std::vector<Layout> process_layouts() {
  std::vector<Layout> layouts;
  for (const auto& [ranks, all, few] : {std::tuple(2, 5, 1), std::tuple(4, 6, 1), std::tuple(8, 1, 0)}) {
    const std::vector<Layout>& cover = cover_of(ranks);
    layouts.insert(layouts.end(), cover.begin(), cover.begin() + (run_all() ? all : few));
  }
  return layouts;
}

INSTANTIATE_TEST_SUITE_P(Mpi, Processes, testing::ValuesIn(process_layouts()), [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace hyperparallel::parity
