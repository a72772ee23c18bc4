// `hyperparallel plan` against real processes: what it predicts is what a run's metrics say.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "program.h"

namespace hyperparallel {
namespace {

using testing::HasSubstr;

// Text alone, so that every row is full.
// Documents that fill a row of 768 tokens, one each: with more of them in a row draft layers have more anchors than is planned.
void write_text(const std::filesystem::path& path) {
  std::ofstream file(path);
  for (int line = 0; line < 64; ++line) {
    file << R"({"messages": [{"role": "user", "content": "count"}, {"role": "assistant", "content": ")";
    for (int i = 0; i < 180; ++i) file << (line * 131 + i * i) % 997 << ' ';
    file << "\"}]}\n";
  }
}

double measured_peak(const std::filesystem::path& run) {
  const std::string lines = read_text(run / "metrics.jsonl");
  return nlohmann::json::parse(lines.substr(0, lines.find('\n'))).at("memory/max_active(GiB)").get<double>() * (1 << 30);
}

TEST(PlanCommand, ThePredictedPeakIsThatOfRuns) {
  const TemporaryFolder folder;
  write_text(folder.path() / "text.jsonl");
  struct Case {
    int ranks, batch;
    const char* flags;
  };
  const Case cases[] = {{1, 2, ""},
                        {2, 2, "--parallel.tp=2 --parallel.ep=2"},
                        {4, 4, "--parallel.cp=2 --parallel.ep=4"},
                        {4, 8, "--parallel.fsdp_replicate=2 --parallel.fsdp_shard=2 --parallel.ep=2"},
                        {4, 2, "--parallel.tp=2 --parallel.cp=2 --parallel.sequence_parallel=true"},
                        {2, 4, "--parallel.ep=2 --train.dtype=bfloat16"}};
  for (const Case& layout : cases) {
    for (const char* mode : {"none", "full"}) {
      const std::string output = (folder.path() / fmt::format("{}-{}", &layout - cases, mode)).string();
      const std::string arguments = fmt::format(
          "configs/tiny.yaml --ranks {} {} --recompute.mode={} --train.global_batch_size={} --train.local_batch_size=1 "
          "--train.steps=1 --train.threads=1 --optimizer.schedule.warmup_steps=1 --data.seq_len=768 --data.train=[{}] "
          "--data.workers=0 --validation.interval=0 --checkpoint.interval=0 --train.output={}",
          layout.ranks, layout.flags, mode, layout.batch, (folder.path() / "text.jsonl").string(), output);
      const ProgramResult plan = run_program("plan " + arguments + " --json"), run = run_program("train " + arguments);
      ASSERT_EQ(plan.code, 0) << plan.error;
      ASSERT_EQ(run.code, 0) << run.error;
      const auto peak = nlohmann::json::parse(plan.output).at("memory").at("peak");
      const double planned = peak.at("total"), measured = measured_peak(output);
      EXPECT_NEAR(planned / measured, 1, 0.15) << arguments << "\nmeasured " << measured << ", planned " << peak.dump();
    }
  }
}

TEST(PlanCommand, WritesOnePageAndKnowsItsScenarios) {
  const TemporaryFolder folder;
  const std::string page = (folder.path() / "plan.html").string();
  const ProgramResult result =
      run_program("plan configs/tiny.yaml --ranks 2 --parallel.ep=2 --html " + page + " --scenario=worst");
  ASSERT_EQ(result.code, 0) << result.error;
  EXPECT_THAT(read_text(page), HasSubstr("tiny.yaml on 2 ranks"));
  EXPECT_FALSE(std::filesystem::exists(page + ".tmp"));
  const auto peak = [](const std::string& arguments) {
    const ProgramResult found = run_program("plan configs/tiny.yaml --json --ranks 2 " + arguments);
    EXPECT_EQ(found.code, 0) << found.error;
    return nlohmann::json::parse(found.output).at("memory").at("peak").at("total").get<int64_t>();
  };
  const int64_t text = peak(""), small = peak("--pictures 2x64x64"), large = peak("--pictures=2");
  EXPECT_LT(text, small);
  EXPECT_LT(small, large);
  const std::pair<const char*, const char*> refused[] = {
      {"configs/tiny.yaml --pictures two", "8x640x480"},
      {"configs/tiny.yaml --pictures 2x64", "8x640x480"},
      {"configs/tiny.yaml --pictures 50", "50 pictures of 58 tokens each are 2900, more than the 262"},
      {"configs/llama_tiny.yaml --pictures 1", "takes no pictures"}};
  for (const auto& [arguments, message] : refused) {
    const ProgramResult result = run_program(std::string("plan ") + arguments);
    EXPECT_EQ(result.code, 2);
    EXPECT_THAT(result.error, HasSubstr(message));
  }
  const ProgramResult wrong = run_program("plan configs/tiny.yaml --scenario best");
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.error, HasSubstr("balanced"));
}

}  // namespace
}  // namespace hyperparallel
