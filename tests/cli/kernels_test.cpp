#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "cli/program.h"
#include "support/scratch.h"

namespace hyperparallel {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(InspectKernels, ShowsWhatIsTakenAndWhyNotAFasterOne) {
  const ProgramResult result = run_program("inspect kernels configs/tiny.yaml");
  EXPECT_EQ(result.code, 0) << result.error;
  for (const char* operation : {"attention", "indexer", "gate", "experts", "shared expert", "mhc", "engram"})
    EXPECT_THAT(result.output, HasSubstr(operation));
  const ProgramResult limited = run_program("inspect kernels configs/tiny.yaml --kernels.moe=reference");
  EXPECT_THAT(limited.output, HasSubstr("not mega: the configuration allows no faster one than reference"));
  EXPECT_THAT(run_program("inspect kernels configs/tiny.yaml --kernels.moe=fast").error,
              AllOf(HasSubstr("kernels.moe"), HasSubstr("reference"), HasSubstr("mega")));
}

TEST(BenchMega, GivesGainsAsJson) {
  const ProgramResult result = run_program("bench mega configs/tiny.yaml --tokens 64 --repetitions 1 --threads 1 --json");
  ASSERT_EQ(result.code, 0) << result.error;
  const auto json = nlohmann::json::parse(result.output);
  for (const char* wrong : {"--tokens 1", "--tokens 99999999999999999999", "--threads 9999", "--repetitions 0", "--tokens abc"})
    EXPECT_EQ(run_program(std::string("bench mega configs/tiny.yaml ") + wrong).code, 2) << wrong;
  for (const char* key : {"gain.moe", "gain.all", "seconds.off"}) EXPECT_TRUE(json.at(key).is_number()) << key;
}

TEST(BenchMega, RunsOnRanksBetweenWhichExpertsLie) {
  const ProgramResult result =
      run_program("bench mega configs/tiny.yaml --ranks 2 --tokens 64 --repetitions 1 --threads 1 --json");
  ASSERT_EQ(result.code, 0) << result.error;
  const auto json = nlohmann::json::parse(result.output);
  EXPECT_EQ(json.at("ranks"), 2);
  EXPECT_GT(json.at("waited.off").get<double>(), 0);
  EXPECT_THAT(run_program("bench mega configs/tiny.yaml --ranks 2 --parallel.ep=3").error, HasSubstr("ep"));
  EXPECT_THAT(run_program("bench mega configs/tiny.yaml --kernels.moe=mega").error, HasSubstr("--kernels.*: not used here"));
}

TEST(BenchKernels, GivesALineForEveryKernel) {
  for (const char* dtype : {"float32", "bfloat16"}) {
    const ProgramResult result = run_program(
        std::string("bench kernels configs/tiny.yaml --tokens 67 --repetitions 1 --threads 1 --json --dtype ") + dtype);
    ASSERT_EQ(result.code, 0) << result.error;
    std::vector<std::string> operations;
    const auto json = nlohmann::json::parse(result.output);
    for (const auto& kernel : json.at("kernels")) {
      operations.push_back(kernel.at("operation"));
      for (const char* key : {"seconds.ours", "seconds.library", "seconds.limit"})
        EXPECT_GT(kernel.at(key).get<double>(), 0) << key;
    }
    EXPECT_THAT(operations,
                testing::ElementsAre("attention", "indexer", "gate", "moe", "mhc", "engram", "norm", "rope", "cross_entropy"));
  }
  EXPECT_THAT(run_program("bench kernels configs/llama_tiny.yaml --tokens 8").error, HasSubstr("no kernels of its own"));
}

TEST(InspectTrace, ShowsTheTasksOfARun) {
  const Scratch folder;
  const std::string output = (folder / "run").string();
  const ProgramResult run = run_program(
      "train configs/tiny.yaml --train.steps=2 --profile.steps=1 --profile.start=2 "
      "--profile.kernels=true --train.output=" +
      output);
  ASSERT_EQ(run.code, 0) << run.error;
  const ProgramResult result = run_program("inspect trace " + output + "/traces/trace-steps-2-2.json");
  EXPECT_EQ(result.code, 0) << result.error;
  EXPECT_THAT(result.output, AllOf(HasSubstr("matrix"), HasSubstr("waiting"), HasSubstr("thread")));
  EXPECT_EQ(run_program("inspect trace " + output + "/metrics.jsonl").code, 2);
}

}  // namespace
}  // namespace hyperparallel
