// Real processes over MPI: one YAML, only flags changed.
#include <gmock/gmock.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "program.h"

namespace hyperparallel {
namespace {

using testing::HasSubstr;

std::string tiny(const TemporaryFolder& folder, const std::string& run, const std::string& more) {
  return "train configs/tiny.yaml --train.threads 1 --data.workers=0 --model.cache_quantisation=false --train.steps=3 "
         "--optimizer.schedule.warmup_steps=1 --validation.interval=3 --validation.generate_samples=0 --train.local_batch_size=1 "
         "--train.output " +
         (folder.path() / run).string() + " " + more;
}

std::vector<nlohmann::json> metrics(const TemporaryFolder& folder, const std::string& run) {
  std::vector<nlohmann::json> steps;
  std::istringstream lines(read_text(folder.path() / run / "metrics.jsonl"));
  for (std::string line; std::getline(lines, line);) steps.push_back(nlohmann::json::parse(line));
  return steps;
}

void expect_equal(const std::vector<nlohmann::json>& found, const std::vector<nlohmann::json>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  ASSERT_EQ(expected.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    for (const char* key : {"loss", "grad_norm"}) {
      const double wanted = expected[i].at(key);
      EXPECT_NEAR(found[i].at(key).get<double>(), wanted, 1e-5 * wanted) << key << " of step " << i + 1;
    }
    EXPECT_EQ(found[i].at("supervised_tokens"), expected[i].at("supervised_tokens"));
  }
  const double validation = expected[2].at("validation_metrics/loss");
  EXPECT_NEAR(found[2].at("validation_metrics/loss").get<double>(), validation, 1e-5 * validation);
}

TEST(Ranks, AnyLayoutGivesTheLossesOfOneProcess) {
  const TemporaryFolder folder;
  ASSERT_EQ(run_program(tiny(folder, "one", "")).code, 0);
  const auto expected = metrics(folder, "one");
  const std::pair<const char*, const char*> layouts[] = {
      {"dp2", "--ranks 2"},
      {"ep2", "--ranks 2 --parallel.ep=2 --parallel.fsdp_shard=1 --parallel.fsdp_replicate=2"},
      {"tp2", "--ranks=2 --parallel.tp=2 --parallel.sequence_parallel"},
      {"all", "--ranks 4 --parallel.tp=2 --parallel.cp=2 --parallel.ep=4 --parallel.cp_shard=balanced --recompute.mode=full"}};
  for (const auto& [name, flags] : layouts) {
    const ProgramResult result = run_program(tiny(folder, name, flags));
    ASSERT_EQ(result.code, 0) << name << "\n" << result.error;
    expect_equal(metrics(folder, name), expected);
  }
}

TEST(Ranks, OfSeveralHostsNeedNoSharedMemory) {
  const TemporaryFolder folder;
  ASSERT_EQ(run_program(tiny(folder, "one", "")).code, 0);
  setenv("OMPI_MCA_btl", "tcp,self", 1);
  const ProgramResult result = run_program(tiny(folder, "tcp", "--ranks 2 --parallel.cp=2 --parallel.ep=2"));
  unsetenv("OMPI_MCA_btl");
  ASSERT_EQ(result.code, 0) << result.error;
  expect_equal(metrics(folder, "tcp"), metrics(folder, "one"));
}

// Amid training, and while mpirun or the ranks are still starting: NOTE [Stopping ranks].
TEST(Ranks, AStopReachesAllOfThemAndTheCodeComesBack) {
  for (const std::string wait :
       {"until grep -qs 'step: 2 ' LOG; do kill -0 $pid || exit 99; sleep 0.02; done", "sleep 0", "sleep 0.2", "sleep 0.4"}) {
    SCOPED_TRACE(wait);
    const TemporaryFolder folder;
    const std::string log = (folder.path() / "log").string(), script = (folder.path() / "script").string();
    std::string until = wait;
    if (const size_t place = until.find("LOG"); place != std::string::npos) until.replace(place, 3, log);
    std::ofstream(script)
        << "cd '" HP_SOURCE_DIR "'\n'" HP_BINARY_DIR "/hyperparallel' "
        << tiny(folder, "run", "--ranks 2 --train.steps=1000 --validation.interval=0") << " > " << log
        << " 2>&1 &\npid=$!\nuntil grep -qs . /proc/$pid/task/$pid/children; do kill -0 $pid || exit 99; sleep 0.01; done\n"
        << until << "\nkill -TERM $pid\nwait $pid\n";
    const int status = std::system(("sh " + script).c_str());
    EXPECT_EQ(WEXITSTATUS(status), 16) << read_text(log);
    EXPECT_TRUE(std::filesystem::exists(folder.path() / "run/checkpoints/LATEST"));
  }
}

TEST(Ranks, MistakesAreToldOnceBeforeAnythingStarts) {
  const TemporaryFolder folder;
  const ProgramResult degree = run_program(tiny(folder, "run", "--ranks 3 --parallel.tp=2"));
  EXPECT_EQ(degree.code, 2);
  EXPECT_THAT(degree.error, HasSubstr("parallel.tp 2 = 2 does not divide the 3 ranks"));
  const ProgramResult alone = run_program(tiny(folder, "run", "--parallel.tp=2"));
  EXPECT_EQ(alone.code, 2);
  EXPECT_THAT(alone.error, HasSubstr("--ranks N"));
  EXPECT_EQ(run_program(tiny(folder, "run", "--ranks 0")).code, 2);
  EXPECT_EQ(run_program(tiny(folder, "run", "--ranks many")).code, 2);
  EXPECT_THAT(run_program(tiny(folder, "run", "--ranks 2 --ranks=4")).error, HasSubstr("--ranks is given twice"));
  EXPECT_THAT(run_program(tiny(folder, "run", "--ranks 100000")).error, HasSubstr("hardware threads"));
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "run"));
}

TEST(Ranks, ALayoutIsPlannedWithoutThem) {
  const ProgramResult result = run_program("plan configs/released.yaml --ranks 2048 --json");
  ASSERT_EQ(result.code, 0) << result.error;
  const auto plan = nlohmann::json::parse(result.output);
  EXPECT_EQ(plan.at("parameters").at("total"), 763205315794);
  EXPECT_EQ(plan.at("memory").at("ranks").size(), 2048u);
}

// Whoever ends first: the rank that hears of the fault by another ends with the code of the one that found it.
TEST(Ranks, AFaultOfOneRankIsTheCodeOfAll) {
  const TemporaryFolder folder;
  const std::string flags = "--ranks 2 --parallel.tp=2";
  ASSERT_EQ(run_program("train configs/tiny.yaml --train.threads 1 --train.steps=1 --validation.generate_samples=0 "
                        "--optimizer.schedule.warmup_steps=1 --train.local_batch_size=1 --train.output " +
                        (folder.path() / "run").string() + " " + flags)
                .code,
            0);
  const std::filesystem::path shard = folder.path() / "run/checkpoints/step-00000001/rank-00001.safetensors";
  std::string bytes = read_text(shard);
  bytes[bytes.size() / 2] = static_cast<char>(bytes[bytes.size() / 2] ^ 1);
  std::ofstream(shard, std::ios::binary) << bytes;
  for (int i = 0; i < 4; ++i) {
    const ProgramResult result = run_program(tiny(folder, "run", flags));
    EXPECT_EQ(result.code, 4) << result.error;
    EXPECT_THAT(result.error, HasSubstr("does not have the checksum in the manifest: damaged"));
  }
}

}  // namespace
}  // namespace hyperparallel
