#include "verify.h"

#include "arguments.h"
#include "base/error.h"
#include "train/verify.h"

namespace hyperparallel {

int verify(const std::vector<std::string>& arguments) {
  CLI::App app("Run forward and backward of a fixture folder and compare every tensor it holds", "hyperparallel verify");
  std::string folder, recompute = "none";
  train::VerifyOptions options;
  bool failures_only = false;
  app.add_option("CASE_DIR", folder, "folder with config.json, weights.safetensors and case.safetensors")->required();
  app.add_flag("--float64", options.float64, "compute in double; only the rounding of the files is left");
  app.add_option("--recompute", recompute, "none | full: do the forward work of layers again in backward")
      ->check(CLI::IsMember({"none", "full"}));
  app.add_flag("--failures", failures_only, "print only the rows that fail");
  if (!parse_arguments(app, arguments)) return 0;
  if (recompute == "full") options.recompute.mode = engine::RecomputePolicy::Mode::kFull;

  const train::VerifyReport report = train::verify_case(folder, options);
  fmt::print("{:<56} {:<20} {:>12} {:>12} {:>12}  {}\n", "tensor", "shape", "max abs", "max rel", "limit", "pass");
  for (const train::VerifyRow& row : report.rows) {
    if (failures_only && row.pass) continue;
    fmt::print("{:<56} {:<20} {:>12.3e} {:>12.3e} {:>12.3e}  {}\n", row.name, row.shape, row.absolute, row.relative, row.limit,
               row.pass ? "yes" : "NO");
  }
  for (const std::string& name : report.not_compared)
    fmt::print("{:<56} not compared: this program makes nothing of that name\n", name);
  const train::VerifyRow& worst = report.worst();
  fmt::print("verify: {} worst={} error={:.3e}\n", report.pass() ? "PASS" : "FAIL", worst.name, worst.absolute);
  return static_cast<int>(report.pass() ? ExitCode::kFinished : ExitCode::kCheckFailed);
}

}  // namespace hyperparallel
