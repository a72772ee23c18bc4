#include "report.h"

#include "arguments.h"
#include "base/error.h"
#include "train/report.h"

namespace hyperparallel {

int report(const std::vector<std::string>& arguments) {
  CLI::App app("Makes OUT/report.html from OUT/metrics.jsonl and what else a run left there", "hyperparallel report");
  std::string output;
  app.add_option("OUT", output, "Output folder of a training run")->required();
  if (!parse_arguments(app, arguments)) return static_cast<int>(ExitCode::kFinished);
  fmt::print("{}\n", train::write_report(output).string());
  return static_cast<int>(ExitCode::kFinished);
}

}  // namespace hyperparallel
