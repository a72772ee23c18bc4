#include "bench.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "arguments.h"
#include "local_ranks.h"
#include "model_argument.h"
#include "subcommand.h"
#include "train/bench_kernels.h"
#include "train/bench_mega.h"
#include "train/bench_step.h"
#include "train/run_model.h"

namespace hyperparallel {
namespace {

const CLI::Range kLengths(2, 1 << 24), kThreads(0, 1024), kRepetitions(1, 1000);

// What all kinds take.
struct Common {
  std::string model, dtype;
  int threads = 0;
  bool json = false;

  at::ScalarType type() const { return dtype == "bfloat16" ? at::kBFloat16 : at::kFloat; }
};

void add_options(CLI::App& app, Common& common, int& repetitions) {
  app.add_option("CONFIG", common.model, "config.json of a model, or a YAML configuration")->required();
  app.add_option("--dtype", common.dtype, "float32 | bfloat16")
      ->capture_default_str()
      ->check(CLI::IsMember({"float32", "bfloat16"}));
  app.add_option("--threads", common.threads, "0: all cores")->check(kThreads);
  app.add_option("--repetitions", repetitions, "timed runs, after one that is not, of which the median counts")
      ->capture_default_str()
      ->check(kRepetitions);
  app.add_flag("--json", common.json, "print JSON instead of a table");
}

void set_up_process(const Common& common, const dist::World* world = nullptr) {
  train::TrainSection process;
  process.threads = common.threads;
  train::set_up_libtorch(process, world);
}

// With what was asked for.
void print_json(nlohmann::ordered_json result, const Common& common, int repetitions) {
  result["dtype"] = common.dtype, result["repetitions"] = repetitions;
  fmt::print("{}\n", result.dump(1));
}

void print_segments(const train::BenchStepRow& row, int most) {
  std::vector<std::pair<double, std::string>> kinds;
  for (const auto& [kind, seconds] : row.segments) kinds.emplace_back(seconds, kind);
  std::ranges::sort(kinds, std::greater());
  for (size_t i = 0; i < std::min<size_t>(kinds.size(), most); ++i)
    fmt::print("  {:>8.1f} ms {:>6.1f} %  {}\n", 1e3 * kinds[i].first, 100 * kinds[i].first / row.step_seconds, kinds[i].second);
}

int bench_step(const std::vector<std::string>& arguments) {
  CLI::App app("Time forward and backward of a model on one packed row of random text", "hyperparallel bench step");
  Common common{"", "float32"};
  std::string recompute = "none";
  train::BenchStepOptions options;
  add_options(app, common, options.repetitions);
  app.add_option("--tokens", options.lengths, "lengths of the row, separated by commas")->delimiter(',')->check(kLengths);
  app.add_option("--recompute", recompute, "none | full")->check(CLI::IsMember({"none", "full"}));
  app.add_option("--offload", options.recompute.offload, "globs of values that rest in a file, with --recompute full")
      ->delimiter(',');
  app.add_option("--offload-folder", options.offload_folder, "where that file lies")->check(CLI::ExistingDirectory);
  app.add_flag("!--cold", options.warms_up, "time the first run, too: for rows that take minutes");
  int segments = 0;
  app.add_option("--segments", segments, "show so many kinds of segments, those that take longest first")
      ->check(CLI::NonNegativeNumber);
  app.allow_extras();
  app.footer("The keys of a configuration's kernels section: --kernels.attention=reference");
  if (!parse_arguments(app, arguments)) return 0;
  train::choose_kernels(train::config_of_overrides(app.remaining(), {"kernels"}).kernels, options.program);
  set_up_process(common);
  options.compute = common.type();
  if (recompute == "full") options.recompute.mode = engine::RecomputePolicy::Mode::kFull;

  const train::BenchStepResult result = train::bench_step(read_model_argument(common.model), options);
  if (common.json) {
    fmt::print("{}\n", to_json(result).dump(1));
    return 0;
  }
  fmt::print("{} parameters, {}, {} threads, recompute {}; mm of 2048^3: FP32 {:.0f} GFLOP/s, of which mfu, {} {:.0f} GFLOP/s\n",
             result.parameters, common.dtype, result.threads, recompute, result.peak_gflops, common.dtype, result.compute_gflops);
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

void print_mega(const train::BenchMegaResult& result, const Common& common, int repetitions) {
  fmt::print("{} tokens{}, {}, {} threads, {} repetitions; forward and backward, medians\n", result.tokens,
             result.ranks > 1 ? fmt::format(" on each of {} ranks", result.ranks) : "", common.dtype, result.threads,
             repetitions);
  const auto waited = [&](double percent) {
    return result.ranks > 1 ? fmt::format("; waits for others {:.1f} %", percent) : std::string();
  };
  fmt::print("  {:<32} {:>8.3f} s{}\n", "library operations", result.off_seconds, waited(result.off_waited));
  const auto line = [&](const char* what, double seconds, const train::Gain& gain, double percent) {
    fmt::print("  {:<32} {:>8.3f} s  {:+.1f} % tokens/s ({:+.1f} to {:+.1f}){}\n", what, seconds, gain.median, gain.least,
               gain.most, waited(percent));
  };
  line("MegaMoE", result.moe_seconds, result.moe, result.moe_waited);
  line("MegaMoE, MegaGate and MegaMHC", result.all_seconds, result.all, result.all_waited);
}

int bench_mega(const std::vector<std::string>& all_arguments) {
  std::vector<std::string> arguments = all_arguments;
  const RankStart start = take_rank_start(arguments);
  CLI::App app("Time forward and backward with and without the mega kernels, in turn", "hyperparallel bench mega");
  Common common{"", "bfloat16"};
  train::BenchMegaOptions options;
  add_options(app, common, options.repetitions);
  app.add_option("--tokens", options.tokens, "length of each rank's row")->capture_default_str()->check(kLengths);
  app.allow_extras();
  app.footer(
      "--ranks N runs as N processes, between which experts lie.\n"
      "The keys of a configuration's parallel section: --parallel.ep=2");
  if (!parse_arguments(app, arguments)) return 0;
  options.compute = common.type();
  std::vector<std::string> overrides = app.remaining();
  overrides.insert(overrides.begin(), "--parallel.ep=-1");
  const train::Config config = train::config_of_overrides(overrides, {"parallel"});
  train::check_layout(config, start.ranks);
  std::vector<std::string> words{"mega"};
  words.insert(words.end(), arguments.begin(), arguments.end());
  return run_on_ranks(start, "bench", words, dist::Seconds(config.parallel.timeout), [&](dist::World* world) {
    set_up_process(common, world);
    const train::Ranks ranks = train::make_ranks(config, world);
    const train::BenchMegaResult result = train::bench_mega(read_model_argument(common.model), options, ranks);
    if (!ranks.is_first()) return 0;
    common.json ? print_json(to_json(result), common, options.repetitions) : print_mega(result, common, options.repetitions);
    return 0;
  });
}

int bench_kernels(const std::vector<std::string>& arguments) {
  CLI::App app("Time single kernels at a model's sizes, in turn with library operations", "hyperparallel bench kernels");
  Common common{"", "float32"};
  int64_t tokens = 4096;
  int repetitions = 5;
  add_options(app, common, repetitions);
  app.add_option("--tokens", tokens, "length of the row")->capture_default_str()->check(kLengths);
  if (!parse_arguments(app, arguments)) return 0;
  set_up_process(common);
  const train::BenchKernelsResult result =
      train::bench_kernels(read_model_argument(common.model), tokens, common.type(), repetitions);
  if (common.json) {
    print_json(to_json(result), common, repetitions);
    return 0;
  }
  fmt::print(
      "{} tokens, {}, {} threads; forward and backward (the indexer: forward), medians of {}; limit: {:.0f} GFLOP/s, {:.0f} "
      "GB/s\n",
      result.tokens, common.dtype, result.threads, repetitions, result.compute_gflops, result.copy_gbytes);
  fmt::print("{:<14} {:<40} {:>9} {:>11} {:>6} {:>9} {:>9}\n", "operation", "shape", "ours ms", "library ms", "", "limit ms",
             "reached");
  for (const train::KernelTimes& kernel : result.kernels) {
    fmt::print("{:<14} {:<40} {:>9.2f} {:>11.2f} {:>5.2f}x {:>9.2f} {:>7.0f} %  {}\n", kernel.operation, kernel.shape,
               1e3 * kernel.ours_seconds, 1e3 * kernel.library_seconds, kernel.library_seconds / kernel.ours_seconds,
               1e3 * kernel.limit_seconds, 100 * kernel.limit_seconds / kernel.ours_seconds,
               kernel.limited_by_memory ? "of copying" : "of products");
  }
  for (const std::string& kernel : result.too_large) fmt::print("not timed: {}\n", kernel);
  return 0;
}

}  // namespace

int bench(const std::vector<std::string>& arguments) {
  static const std::vector<Command> kinds = {
      {"step", "seconds, tokens/s, memory and MFU of a training step", bench_step},
      {"mega", "what the mega kernels gain over library operations", bench_mega},
      {"kernels", "single kernels against library operations and the machine's limits", bench_kernels}};
  return run_kind("bench", kinds, arguments);
}

}  // namespace hyperparallel
