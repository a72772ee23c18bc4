// Starts mpi_check as several processes and looks at what they say and how they end.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/wait.h>

#include <cstdio>

#include "base/error.h"

namespace hyperparallel {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

struct Outcome {
  int code;
  std::string output;
};

Outcome shell(const std::string& command) {
  FILE* pipe = popen((command + " 2>&1").c_str(), "r");
  Outcome outcome;
  char buffer[4096];
  for (size_t count; (count = fread(buffer, 1, sizeof(buffer), pipe)) > 0;) outcome.output.append(buffer, count);
  const int status = pclose(pipe);
  outcome.code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return outcome;
}

// MPI itself leaks at its end.
const std::string kEnvironment =
    fmt::format("ASAN_OPTIONS=detect_leaks=0 TSAN_OPTIONS=suppressions={}/tests/dist/mpi/tsan.supp timeout 120", HP_SOURCE_DIR);

// The options let it run as root, and with more ranks than cores, each free to use any core.
Outcome mpirun(int ranks, const std::string& scenario, const std::string& options = "") {
  return shell(fmt::format("{} {} -np {} --oversubscribe --bind-to none --allow-run-as-root {} {}/mpi_check '{}'", kEnvironment,
                           HP_MPIRUN, ranks, options, HP_BINARY_DIR, scenario));
}

// Ranks of one host without memory that they share: as if they were on different hosts.
const std::string kHostsApart = "--mca btl tcp,self --mca pml ob1";

void expect_operations(int ranks, const std::string& options = "") {
  const Outcome outcome = mpirun(ranks, "operations", options);
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_EQ(outcome.output, "all operations are right\n");
}

TEST(MpiComm, OneProcessIsAWorldOfOne) {
  expect_operations(1);
}

TEST(MpiComm, TwoProcessesGiveTheBitsOfPlainLoopsAndOfThreads) {
  expect_operations(2);
}

TEST(MpiComm, ThreeProcessesGiveTheBitsOfPlainLoopsAndOfThreads) {
  expect_operations(3);
}

TEST(MpiComm, FourProcessesWithoutSharedMemoryGiveTheSameBits) {
  expect_operations(4, kHostsApart);
}

TEST(MpiComm, NamesACallOfAnotherOperationOnEveryRank) {
  const Outcome outcome = mpirun(3, "operation");
  EXPECT_EQ(outcome.code, static_cast<int>(ExitCode::kPeer));
  EXPECT_THAT(outcome.output, HasSubstr("error: rank 2, group \"tp\" (ranks 0 1 2): all_reduce \"loss\" #2, Float [2, 4]: "));
  for (const char* rank : {"0", "1"}) {
    EXPECT_THAT(outcome.output,
                HasSubstr(fmt::format("error: rank {}, group \"tp\" (ranks 0 1 2): all_gather \"kv\" #2, Float [2, 4]: ", rank)));
  }
  EXPECT_THAT(outcome.output, AllOf(HasSubstr("the calls do not fit (operation)"), HasSubstr("called ")));
}

TEST(MpiComm, TellsARankThatSeesNothingOfAMismatchBetweenTwoOthers) {
  const Outcome outcome = mpirun(3, "rows");
  EXPECT_EQ(outcome.code, static_cast<int>(ExitCode::kPeer));
  EXPECT_THAT(outcome.output, HasSubstr("the calls do not fit (rows: "));
  EXPECT_THAT(outcome.output, HasSubstr("error: rank 1, group \"tp\" (ranks 0 1 2): "));
}

TEST(MpiComm, NamesALateRankWithItsLastCall) {
  const Outcome outcome = mpirun(2, "late");
  EXPECT_EQ(outcome.code, static_cast<int>(ExitCode::kPeer));
  EXPECT_THAT(
      outcome.output,
      HasSubstr(
          "error: rank 0, group \"tp\" (ranks 0 1): all_gather \"kv\" #2, Float [2, 4]: rank 1 has not called it within 1 s; "
          "its last call is barrier \"start\" #1, Byte [0] in group \"tp\""));
  EXPECT_THAT(outcome.output,
              HasSubstr("error: rank 1, group \"tp\" (ranks 0 1): all_gather \"kv\" #2, Float [2, 4]: rank 0 failed: "));
}

TEST(MpiComm, NamesAFrozenRankOnEveryLiveOne) {
  const Outcome outcome = mpirun(3, "frozen");
  EXPECT_EQ(outcome.code, static_cast<int>(ExitCode::kPeer));
  for (const char* rank : {"0", "1"}) {
    EXPECT_THAT(outcome.output, HasSubstr(fmt::format("error: rank {}, group \"tp\" (ranks 0 1 2): all_gather \"kv\" #2", rank)));
  }
  EXPECT_THAT(outcome.output, HasSubstr("rank 2 has not called it within 1 s"));
}

TEST(MpiComm, TellsWhatWasHeardOfALateRankOnAnotherHost) {
  const Outcome outcome = mpirun(2, "late", kHostsApart);
  EXPECT_EQ(outcome.code, static_cast<int>(ExitCode::kPeer));
  EXPECT_THAT(outcome.output,
              HasSubstr("rank 1 has not called it within 1 s; the last call heard of it is barrier \"start\" #1, Byte [0] in "
                        "group \"tp\""));
}

TEST(MpiComm, NamesARankThatFreezesInTheMiddleOfACall) {
  for (const std::string& options : {std::string(), kHostsApart}) {
    const Outcome outcome = mpirun(2, "frozen in a call", options);
    EXPECT_EQ(outcome.code, static_cast<int>(ExitCode::kPeer));
    EXPECT_THAT(outcome.output,
                testing::ContainsRegex("error: rank 0, group \"tp\" .ranks 0 1.: all_reduce \"gradients\" #[0-9]+, "
                                       "Float .3000017.: rank 1 has (not called it|called it, but its rows are not "
                                       "here) within 1 s"));
  }
}

TEST(MpiComm, FindsADeadRankThatTheLauncherDoesNotEndTheRunFor) {
  const Outcome outcome = mpirun(3, "killed", "--enable-recovery");
  for (const char* rank : {"0", "1"}) {
    EXPECT_THAT(outcome.output, HasSubstr(fmt::format("error: rank {}, group \"tp\" (ranks 0 1 2): all_gather \"kv\" #2", rank)));
  }
  EXPECT_THAT(outcome.output, HasSubstr("rank 2 is dead; its last call is barrier \"start\" #1, Byte [0] in group \"tp\""));
}

TEST(MpiComm, DoesNotWaitForeverForARankThatIsMissingAtTheStart) {
  const Outcome outcome = mpirun(2, "absent");
  EXPECT_EQ(outcome.code, static_cast<int>(ExitCode::kPeer));
  EXPECT_THAT(outcome.output, HasSubstr("error: rank 0: MPI has not started within 5 s: a rank of the 2 is missing"));
}

TEST(MpiComm, EndsWhenARankIsKilled) {
  EXPECT_NE(mpirun(2, "killed").code, 0);
}

TEST(MpiComm, ReportsARankThatEndsWithoutCalling) {
  const Outcome outcome = mpirun(2, "ended");
  EXPECT_EQ(outcome.code, static_cast<int>(ExitCode::kPeer));
  EXPECT_THAT(outcome.output, HasSubstr("all_gather \"kv\" #2, Float [2, 4]: rank 1 has "));
}

TEST(MpiComm, PassesOnTheErrorOfAFailingRank) {
  const Outcome outcome = mpirun(2, "throws");
  EXPECT_THAT(outcome.output, HasSubstr("error: rank 1: train.jsonl:7: no messages\n"));
  EXPECT_THAT(outcome.output,
              testing::ContainsRegex("error: rank 0, group \"tp\" .*: rank 1 failed: train.jsonl:7: no messages\n"));
  EXPECT_THAT(outcome.code, testing::AnyOf(static_cast<int>(ExitCode::kData), static_cast<int>(ExitCode::kPeer)));
}

TEST(MpiComm, RefusesLaunchersThatContradictEachOther) {
  const Outcome outcome = mpirun(1, "operations", "-x RANK=1 -x WORLD_SIZE=2");
  EXPECT_EQ(outcome.code, static_cast<int>(ExitCode::kUsage));
  EXPECT_THAT(outcome.output,
              HasSubstr("RANK=1 WORLD_SIZE=2 (torchrun) and OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 (Open MPI)"));
}

TEST(MpiComm, RefusesAWorldThatIsNotTheLaunchers) {
  const Outcome outcome =
      shell(fmt::format("SLURM_PROCID=1 SLURM_NTASKS=2 {} {}/mpi_check operations", kEnvironment, HP_BINARY_DIR));
  EXPECT_EQ(outcome.code, static_cast<int>(ExitCode::kUsage));
  EXPECT_THAT(outcome.output,
              HasSubstr("error: Slurm started this process as rank 1 of 2, but MPI sees rank 0 of 1: start it by mpirun"));
}

}  // namespace
}  // namespace hyperparallel
