#include "verify.h"

#include "arguments.h"
#include "base/error.h"
#include "local_ranks.h"
#include "train/run_model.h"
#include "train/verify.h"

namespace hyperparallel {
namespace {

void print_report(const train::VerifyReport& report, bool failures_only) {
  fmt::print("{:<56} {:<20} {:>12} {:>12} {:>12}  {}\n", "tensor", "shape", "max abs", "max rel", "limit", "pass");
  for (const train::VerifyRow& row : report.rows) {
    if (failures_only && row.pass && !row.name.starts_with("tie:")) continue;
    fmt::print("{:<56} {:<20} {:>12.3e} {:>12.3e} {:>12.3e}  {}\n", row.name, row.shape, row.absolute, row.relative, row.limit,
               row.pass ? "yes" : "NO");
  }
  for (const std::string& name : report.not_compared)
    fmt::print("{:<56} not compared: this program makes nothing of that name\n", name);
  const train::VerifyRow& worst = report.worst();
  fmt::print("verify: {} worst={} error={:.3e}{}\n", report.pass() ? "PASS" : "FAIL", worst.name, worst.absolute,
             report.ties > 0 ? fmt::format(" ties={}", report.ties) : "");
}

}  // namespace

int verify(const std::vector<std::string>& all_arguments) {
  std::vector<std::string> arguments = all_arguments;
  const RankStart start = take_rank_start(arguments);
  CLI::App app("Run forward and backward of a fixture folder and compare every tensor it holds, in any layout",
               "hyperparallel verify");
  std::string folder;
  train::VerifyOptions options;
  bool failures_only = false;
  app.add_option("CASE_DIR", folder, "folder with config.json, weights.safetensors and case.safetensors")->required();
  app.add_flag("--float64", options.float64, "compute in double; only the rounding of the files is left");
  app.add_flag("--failures", failures_only, "print only the rows that fail");
  app.allow_extras();
  app.footer("--ranks N: on N ranks. The keys of a configuration's parallel, recompute and kernels sections: --parallel.tp=2");
  if (!parse_arguments(app, arguments)) return 0;
  options.config = train::config_of_overrides(app.remaining(), {"parallel", "recompute", "kernels"});
  train::check_case_layout(folder, options, start.ranks);
  const dist::Seconds timeout(options.config.parallel.timeout);
  return run_on_ranks(start, "verify", arguments, timeout, [&](dist::World* world) {
    train::set_up_libtorch(options.config.train, world);
    const train::VerifyReport report = train::verify_case(folder, options, world);
    if (world == nullptr || world->rank() == 0) print_report(report, failures_only);
    return static_cast<int>(report.pass() ? ExitCode::kFinished : ExitCode::kCheckFailed);
  });
}

}  // namespace hyperparallel
