#include "eval.h"

#include <unistd.h>

#include <nlohmann/json.hpp>

#include "arguments.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "train/evaluate.h"
#include "train/report.h"

namespace hyperparallel {
namespace {

namespace fs = std::filesystem;

// The configuration of a run's folder, or of a file; where the run's files lie.
train::Config config_of(const fs::path& path, const std::vector<std::string>& overrides, fs::path& output) {
  const bool is_run = fs::is_directory(path);
  const fs::path file = is_run ? path / "config.yaml" : path;
  if (is_run && !fs::exists(file))
    throw UsageError("{}: neither a configuration nor the folder of a run: it holds no config.yaml", path.string());
  train::Config config = train::load_config(file, overrides);
  output = is_run ? path : config.train.output;
  if (output.empty()) throw ConfigError("{}: train.output is missing: where are the run's checkpoints?", file.string());
  if (config.data.tokenizer.empty()) throw ConfigError("{}: data.tokenizer is missing", file.string());
  return config;
}

void show_progress(int64_t answered, int64_t count) {
  if (isatty(STDERR_FILENO) == 0 || (answered % 100 != 0 && answered != count)) return;
  fmt::print(stderr, "\r{} of {} questions answered{}", answered, count, answered == count ? "\n" : "");
}

}  // namespace

int evaluate(const std::vector<std::string>& arguments) {
  CLI::App app(
      "Answers the questions of a split greedily and compares with the answers given there: exact match by answer type, beside "
      "always "
      "giving the split's most frequent answer. Writes OUT/eval.json and makes OUT/report.html again. Overrides of the "
      "configuration may "
      "follow: --section.key=value.",
      "hyperparallel eval");
  std::string path, checkpoint;
  train::EvaluateOptions options;
  app.add_option("CONFIG|RUN_FOLDER", path, "a configuration, or the output folder of a training run")->required();
  app.add_option("--split", options.split, "train, validation or test: the files of that key of the data section")
      ->capture_default_str();
  app.add_option("--limit", options.limit, "only the first questions; 0: all")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--batch", options.batch, "questions answered at once")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--max-new-tokens", options.max_new_tokens, "longest answer")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--examples", options.examples, "answers kept as examples")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--checkpoint", checkpoint, "a checkpoint or a Hugging Face folder (default: the run's latest)");
  app.allow_extras();
  if (!parse_arguments(app, arguments)) return static_cast<int>(ExitCode::kFinished);

  fs::path output;
  const train::Config config = config_of(path, app.remaining(), output);
  require(*config.model.architecture, models::Ability::kGeneration, "`eval`");
  train::set_up_libtorch(config.train);
  const data::Tokenizer tokenizer = data::Tokenizer::load(config.data.tokenizer.string());
  const auto model = train::build_run_model(config, tokenizer);
  const fs::path weights = train::load_weights(*model->parameters, checkpoint.empty() ? output : fs::path(checkpoint));
  log::info("answering data.{} with {}", options.split, weights.string());

  const double begin = monotonic_seconds();
  const auto answers = train::answer_split(config, *model, tokenizer, options, show_progress);
  const double seconds = monotonic_seconds() - begin;
  nlohmann::ordered_json result = train::score(answers, options);
  result["checkpoint"] = weights.string();
  result["seconds"] = seconds;
  fs::create_directories(output);
  file::write(output / "eval.json", result.dump(1) + "\n");
  fmt::print("{}{} questions in {:.1f} s; {}\n", train::score_table(result), answers.size(), seconds,
             (output / "eval.json").string());
  if (fs::exists(output / "metrics.jsonl")) fmt::print("report: {}\n", train::write_report(output).string());
  return static_cast<int>(ExitCode::kFinished);
}

}  // namespace hyperparallel
