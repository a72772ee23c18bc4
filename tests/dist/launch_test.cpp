#include "dist/launch.h"

#include <gmock/gmock.h>

#include "base/error.h"

namespace hyperparallel::dist {
namespace {

using testing::HasSubstr;
using Environment = std::map<std::string, std::string>;

Launch launch(const Environment& environment) {
  return read_launch([&](const char* name) -> const char* {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.c_str();
  });
}

std::string refusal(const Environment& environment) {
  try {
    launch(environment);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(Launch, OfNobodyIsOneRank) {
  const Launch one = launch({{"PATH", "/bin"}, {"WORLD_SIZE", "4"}});
  EXPECT_EQ(one.launcher, "");
  EXPECT_EQ(one.rank, 0);
  EXPECT_EQ(one.world_size, 1);
}

TEST(Launch, IsReadFromEveryLauncher) {
  const std::pair<const char*, Environment> all[] = {
      {"torchrun", {{"RANK", "3"}, {"WORLD_SIZE", "8"}, {"LOCAL_RANK", "1"}}},
      {"Open MPI", {{"OMPI_COMM_WORLD_RANK", "3"}, {"OMPI_COMM_WORLD_SIZE", "8"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "1"}}},
      {"MPICH or Intel MPI", {{"PMI_RANK", "3"}, {"PMI_SIZE", "8"}, {"MPI_LOCALRANKID", "1"}}},
      {"Slurm", {{"SLURM_PROCID", "3"}, {"SLURM_NTASKS", "8"}, {"SLURM_LOCALID", "1"}}},
      {"Slurm", {{"SLURM_PROCID", "3"}, {"SLURM_NTASKS", "16"}, {"SLURM_STEP_NUM_TASKS", "8"}, {"SLURM_LOCALID", "1"}}}};
  for (const auto& [launcher, environment] : all) {
    const Launch found = launch(environment);
    EXPECT_EQ(found.launcher, launcher);
    EXPECT_EQ(found.rank, 3) << launcher;
    EXPECT_EQ(found.world_size, 8) << launcher;
    EXPECT_EQ(found.local_rank, 1) << launcher;
  }
}

TEST(Launch, ContradictionsShowBothLaunchers) {
  const std::string message =
      refusal({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}});
  EXPECT_THAT(message, HasSubstr("RANK=0 WORLD_SIZE=2 (torchrun) and OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 (Open MPI)"));
}

TEST(Launch, AgreeingLaunchersAreAccepted) {
  EXPECT_EQ(launch({{"RANK", "1"}, {"WORLD_SIZE", "2"}, {"OMPI_COMM_WORLD_RANK", "1"}, {"OMPI_COMM_WORLD_SIZE", "2"}}).launcher,
            "torchrun");
}

TEST(Launch, MpirunInsideASlurmJobCountsRatherThanSlurm) {
  const Launch found =
      launch({{"OMPI_COMM_WORLD_RANK", "5"}, {"OMPI_COMM_WORLD_SIZE", "8"}, {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "2"}});
  EXPECT_EQ(found.launcher, "Open MPI");
  EXPECT_EQ(found.rank, 5);
}

TEST(Launch, IncompleteOrWrongVariablesAreErrors) {
  EXPECT_THAT(refusal({{"RANK", "1"}}), HasSubstr("the environment has RANK=1 (torchrun), but not WORLD_SIZE"));
  EXPECT_THAT(refusal({{"RANK", "2"}, {"WORLD_SIZE", "2"}}), HasSubstr("RANK=2 WORLD_SIZE=2 (torchrun): the rank must be less"));
  EXPECT_THAT(refusal({{"SLURM_PROCID", "one"}, {"SLURM_NTASKS", "2"}}),
              HasSubstr("SLURM_PROCID=one in the environment is not a number"));
}

}  // namespace
}  // namespace hyperparallel::dist
