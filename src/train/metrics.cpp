#include "train/metrics.h"

#include <fmt/format.h>
#include "base/aten.h"

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/file.h"

namespace hyperparallel::train {
namespace {

constexpr double kGiB = 1024.0 * 1024 * 1024;

std::string real(double value) {
  return std::isfinite(value) ? fmt::format("{:.9g}", value) : "null";
}

// The step of a line, or -1 for a line that is no record.
int64_t step_of(const std::string& line) {
  const auto record = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!record.is_object()) return -1;
  const auto step = record.find("step");
  return step != record.end() && step->is_number_integer() ? step->get<int64_t>() : -1;
}

// The lines of `text` that training keeps when it resumes after `last_step`.
std::string kept_lines(const std::string& text, int64_t last_step) {
  std::string kept;
  int64_t previous = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = text.find('\n', begin);
    if (end == text.npos) break;  // torn
    const std::string line = text.substr(begin, end - begin);
    const int64_t step = step_of(line);
    if (step > previous && step <= last_step) {
      kept += line + '\n';
      previous = step;
    }
    begin = end + 1;
  }
  return kept;
}

// A field of /proc/self/status or /proc/meminfo, given there in kB.
int64_t proc_bytes(const char* path, const std::string& key) {
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key)) return std::stoll(line.substr(key.size())) * 1024;
  }
  return 0;
}

}  // namespace

void StepMetrics::set_rates(double step_flops, double peak_gflops) {
  tokens_per_second = static_cast<double>(tokens) / seconds;
  tflops = step_flops / seconds * 1e-12;
  mfu = tflops * 1e3 / peak_gflops;
}

std::string to_json(const StepMetrics& metrics) {
  std::string out = fmt::format(
      "{{\"step\":{},\"loss\":{},\"grad_norm\":{},\"lr\":{},\"tokens\":{},\"supervised_tokens\":{},\"seconds\":{},"
      "\"tokens_per_second\":{},\"tflops\":{},\"mfu\":{},\"memory_rss_bytes\":{},\"data_seconds\":{}",
      metrics.step, real(metrics.loss), real(metrics.grad_norm), real(metrics.lr), metrics.tokens, metrics.supervised_tokens,
      real(metrics.seconds), real(metrics.tokens_per_second), real(metrics.tflops), real(metrics.mfu), metrics.memory_rss_bytes,
      real(metrics.data_seconds));
  for (const auto& [name, value] : metrics.extra) out += fmt::format(",{}:{}", nlohmann::json(name).dump(), real(value));
  return out + "}";
}

MetricsFile::MetricsFile(std::filesystem::path path, int64_t last_step) : path_(std::move(path)) {
  if (!std::filesystem::exists(path_)) return;
  const std::string text = file::read(path_);
  const std::string kept = kept_lines(text, last_step);
  if (kept.size() != text.size()) file::write(path_, kept);
}

void MetricsFile::write(const StepMetrics& metrics) {
  file::append(path_, to_json(metrics) + "\n");
}

std::vector<std::pair<std::string, double>> dashboard_scalars(const StepMetrics& metrics) {
  std::vector<std::pair<std::string, double>> scalars = {
      {"loss_metrics/global_avg_loss", metrics.loss},
      {"grad_norm", metrics.grad_norm},
      {"lr", metrics.lr},
      {"throughput(tps)", metrics.tokens_per_second},
      {"tflops", metrics.tflops},
      {"mfu(%)", metrics.mfu * 100},
      {"time_metrics/end_to_end(s)", metrics.seconds},
      {"time_metrics/data_loading(s)", metrics.data_seconds},
      {"time_metrics/data_loading(%)", metrics.data_seconds / metrics.seconds * 100},
      {"memory/rss(GiB)", static_cast<double>(metrics.memory_rss_bytes) / kGiB},
  };
  scalars.insert(scalars.end(), metrics.extra.begin(), metrics.extra.end());
  return scalars;
}

MemoryUse memory_use() {
  return {.rss_bytes = proc_bytes("/proc/self/status", "VmRSS:"),
          .peak_rss_bytes = proc_bytes("/proc/self/status", "VmHWM:"),
          .machine_bytes = proc_bytes("/proc/meminfo", "MemTotal:"),
          .available_bytes = proc_bytes("/proc/meminfo", "MemAvailable:")};
}

double measure_peak_gflops(at::ScalarType type) {
  constexpr int64_t kSize = 2048;
  const at::Tensor a = at::full({kSize, kSize}, 0.5, type), b = at::full({kSize, kSize}, 0.25, type);
  at::Tensor c = at::mm(a, b);
  double best_seconds = std::numeric_limits<double>::infinity();
  for (int repeat = 0; repeat < 3; ++repeat) {
    const double begin = monotonic_seconds();
    at::mm_out(c, a, b);
    best_seconds = std::min(best_seconds, monotonic_seconds() - begin);
  }
  return 2.0 * kSize * kSize * kSize / best_seconds * 1e-9;
}

}  // namespace hyperparallel::train
