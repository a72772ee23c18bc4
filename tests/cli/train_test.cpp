// `hyperparallel train` as a person meets it: output, resume, signals, mistakes.
#include <gmock/gmock.h>

#include <regex>

#include "program.h"

namespace hyperparallel {
namespace {

using testing::HasSubstr;

std::string tiny(const TemporaryFolder& folder, const std::string& more = "") {
  return "train configs/tiny.yaml --train.threads 1 --train.output " + (folder.path() / "run").string() + " " + more;
}

// metrics.jsonl without what a clock or the machine decides.
std::string losses(const std::filesystem::path& file) {
  std::string text;
  const std::string all = read_text(file);
  const std::regex pattern("\"step\":(\\d+).*?\"loss\":([^,]+).*?\"grad_norm\":([^,]+)");
  for (std::sregex_iterator it(all.begin(), all.end(), pattern), end; it != end; ++it)
    text += (*it)[1].str() + " " + (*it)[2].str() + " " + (*it)[3].str() + "\n";
  return text;
}

TEST(Train, WritesMetricsCheckpointsAndReportAndIsDoneWhenItIsDone) {
  const TemporaryFolder folder;
  const ProgramResult first = run_program(tiny(folder));
  ASSERT_EQ(first.code, 0) << first.error;
  EXPECT_THAT(first.output, testing::ContainsRegex("step: 10  loss: [0-9.]+  grad_norm: [0-9.]+"));
  for (const char* name : {"run/metrics.jsonl", "run/report.html", "run/config.yaml", "run/checkpoints/LATEST"}) {
    EXPECT_TRUE(std::filesystem::exists(folder.path() / name)) << name;
  }
  const ProgramResult second = run_program(tiny(folder));
  EXPECT_EQ(second.code, 0) << second.error;
  EXPECT_THAT(second.error, HasSubstr("has all 10 steps already"));
}

TEST(Train, StoppedByASignalSavesExitsWith16AndContinuesToTheSameBits) {
  const TemporaryFolder whole, parts;
  ASSERT_EQ(run_program(tiny(whole)).code, 0);
  // The shell sends the signal once the third step is reported.
  const std::string log = (parts.path() / "log").string(), script = (parts.path() / "script").string();
  std::ofstream(script) << "cd '" HP_SOURCE_DIR "'\n'" HP_BINARY_DIR "/hyperparallel' " << tiny(parts) << " > " << log
                        << " 2>&1 &\npid=$!\n"
                        << "until grep -qs 'step: 3 ' " << log << "; do sleep 0.02; done\nkill -TERM $pid\nwait $pid\n";
  const int status = std::system(("sh " + script).c_str());
  ASSERT_EQ(WEXITSTATUS(status), 16) << read_text(log);
  const ProgramResult rest = run_program(tiny(parts));
  ASSERT_EQ(rest.code, 0) << rest.error;
  EXPECT_THAT(rest.error, HasSubstr("continuing"));
  EXPECT_EQ(losses(parts.path() / "run/metrics.jsonl"), losses(whole.path() / "run/metrics.jsonl"));
  EXPECT_NE(losses(whole.path() / "run/metrics.jsonl"), "");
}

TEST(Train, NamesEveryMistakeOfTheConfigurationAtOnce) {
  const TemporaryFolder folder;
  const ProgramResult result = run_program(tiny(folder, "--optimzer.lr 1 --train.step=3"));
  EXPECT_EQ(result.code, 2);
  EXPECT_THAT(result.error, testing::AllOf(HasSubstr("optimzer"), HasSubstr("train.step")));
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "run"));
}

}  // namespace
}  // namespace hyperparallel
