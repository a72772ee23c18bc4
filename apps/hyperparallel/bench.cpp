#include "bench.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "arguments.h"
#include "model_argument.h"
#include "subcommand.h"
#include "train/bench_step.h"
#include "train/run_model.h"

namespace hyperparallel {
namespace {

const CLI::Range kLengths(2, 1 << 24), kThreads(0, 1024), kRepetitions(1, 1000);

void print_segments(const train::BenchStepRow& row, int most) {
  std::vector<std::pair<double, std::string>> kinds;
  for (const auto& [kind, seconds] : row.segments) kinds.emplace_back(seconds, kind);
  std::ranges::sort(kinds, std::greater());
  for (size_t i = 0; i < std::min<size_t>(kinds.size(), most); ++i)
    fmt::print("  {:>8.1f} ms {:>6.1f} %  {}\n", 1e3 * kinds[i].first, 100 * kinds[i].first / row.step_seconds, kinds[i].second);
}

int bench_step(const std::vector<std::string>& arguments) {
  CLI::App app("Time forward and backward of a model on one packed row of random text", "hyperparallel bench step");
  std::string model, dtype = "float32", recompute = "none";
  train::BenchStepOptions options;
  int threads = 0;
  bool json = false;
  app.add_option("CONFIG", model, "config.json of a model, or a YAML configuration")->required();
  app.add_option("--tokens", options.lengths, "lengths of the row, separated by commas")->delimiter(',')->check(kLengths);
  app.add_option("--dtype", dtype, "float32 | bfloat16")->check(CLI::IsMember({"float32", "bfloat16"}));
  app.add_option("--recompute", recompute, "none | full")->check(CLI::IsMember({"none", "full"}));
  app.add_option("--offload", options.recompute.offload, "globs of values that rest in a file, with --recompute full")
      ->delimiter(',');
  app.add_option("--offload-folder", options.offload_folder, "where that file lies")->check(CLI::ExistingDirectory);
  app.add_option("--threads", threads, "0: all cores")->check(kThreads);
  app.add_option("--repetitions", options.repetitions, "timed runs, of which the median counts")
      ->capture_default_str()
      ->check(kRepetitions);
  int segments = 0;
  app.add_option("--segments", segments, "show so many kinds of segments, those that take longest first")
      ->check(CLI::NonNegativeNumber);
  app.add_flag("--json", json, "print JSON instead of a table");
  app.allow_extras();
  app.footer("The keys of a configuration's kernels section: --kernels.attention=reference");
  if (!parse_arguments(app, arguments)) return 0;
  train::choose_kernels(train::config_of_overrides(app.remaining(), {"kernels"}).kernels, options.program);
  train::TrainSection process;
  process.threads = threads;
  train::set_up_libtorch(process);
  if (dtype == "bfloat16") options.compute = at::kBFloat16;
  if (recompute == "full") options.recompute.mode = engine::RecomputePolicy::Mode::kFull;

  const train::BenchStepResult result = train::bench_step(read_model_argument(model), options);
  if (json) {
    fmt::print("{}\n", to_json(result).dump(1));
    return 0;
  }
  fmt::print("{} parameters, {}, {} threads, recompute {}; mm of 2048^3: FP32 {:.0f} GFLOP/s, of which mfu, {} {:.0f} GFLOP/s\n",
             result.parameters, dtype, result.threads, recompute, result.peak_gflops, dtype, result.compute_gflops);
  fmt::print("{:>8} {:>10} {:>10} {:>10} {:>7} {:>12} {:>10}\n", "tokens", "forward s", "step s", "tokens/s", "mfu %",
             "allocated GB", "peak RSS GB");
  for (const train::BenchStepRow& row : result.rows) {
    fmt::print("{:>8} {:>10.3f} {:>10.3f} {:>10.0f} {:>7.1f} {:>12.2f} {:>10.2f}\n", row.tokens, row.forward_seconds,
               row.step_seconds, row.tokens_per_second, 100 * row.mfu, static_cast<double>(row.peak_allocated_bytes) / 1e9,
               static_cast<double>(row.peak_rss_bytes) / 1e9);
    print_segments(row, segments);
  }
  return 0;
}

int bench_mega(const std::vector<std::string>& arguments) {
  CLI::App app("Time forward and backward with and without the mega kernels, in turn", "hyperparallel bench mega");
  std::string model, dtype = "bfloat16";
  train::BenchStepOptions options;
  options.lengths = {4096};
  options.repetitions = 5;
  int threads = 0;
  bool as_json = false;
  app.add_option("CONFIG", model, "config.json of a model, or a YAML configuration")->required();
  app.add_option("--tokens", options.lengths[0], "length of the row")->capture_default_str()->check(kLengths);
  app.add_option("--dtype", dtype, "float32 | bfloat16")->check(CLI::IsMember({"float32", "bfloat16"}));
  app.add_option("--threads", threads, "0: all cores")->check(kThreads);
  app.add_option("--repetitions", options.repetitions, "runs of each, after one that is not timed")
      ->capture_default_str()
      ->check(kRepetitions);
  app.add_flag("--json", as_json, "print JSON instead of a table");
  if (!parse_arguments(app, arguments)) return 0;
  train::TrainSection process;
  process.threads = threads;
  train::set_up_libtorch(process);
  if (dtype == "bfloat16") options.compute = at::kBFloat16;
  const train::BenchMegaResult result = train::bench_mega(read_model_argument(model), options);
  if (as_json) {
    nlohmann::ordered_json json = to_json(result);
    json["dtype"] = dtype, json["repetitions"] = options.repetitions;
    fmt::print("{}\n", json.dump(1));
    return 0;
  }
  fmt::print("{} tokens, {}, {} threads, {} repetitions; forward and backward, medians\n", result.tokens, dtype, result.threads,
             options.repetitions);
  fmt::print("  library operations                  {:>8.3f} s\n", result.off_seconds);
  const auto line = [](const char* what, double seconds, const train::Gain& gain) {
    fmt::print("  {:<35} {:>8.3f} s  {:+.1f} % tokens/s ({:+.1f} to {:+.1f})\n", what, seconds, gain.median, gain.least,
               gain.most);
  };
  line("MegaMoE", result.moe_seconds, result.moe);
  line("MegaMoE, MegaGate and MegaMHC", result.all_seconds, result.all);
  return 0;
}

}  // namespace

int bench(const std::vector<std::string>& arguments) {
  static const std::vector<Command> kinds = {{"step", "seconds, tokens/s, memory and MFU of a training step", bench_step},
                                             {"mega", "what the mega kernels gain over library operations", bench_mega}};
  return run_kind("bench", kinds, arguments);
}

}  // namespace hyperparallel
