// What a training step reports, and where it goes: metrics.jsonl here, TensorBoard in tensorboard.h, the screen in progress.h.
//
// NOTE [MFU]: model FLOP utilisation = FLOPs that the step's tokens need / (seconds * peak FLOP/s). Needed are the products of
// forward and backward with the parameters that are active for a token (chosen experts only), and attention over the positions a
// token may see. Recomputation, padding and element-wise work do not count. The peak is measured: measure_peak_gflops().
#pragma once

#include "base/aten.h"

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace hyperparallel::train {

struct StepMetrics {
  int64_t step = 0;  // from 1
  double loss = 0;   // mean over the step's supervised tokens, on all ranks
  double grad_norm = 0;
  double lr = 0;
  int64_t tokens = 0;  // positions of the step, padding left out, on all ranks
  int64_t supervised_tokens = 0;
  double seconds = 0;       // wall clock of the whole step
  double data_seconds = 0;  // of these, waiting for data
  double tokens_per_second = 0;
  double tflops = 0;  // needed FLOPs a second / 1e12, see NOTE [MFU]
  double mfu = 0;     // 0 to 1
  int64_t memory_rss_bytes = 0;

  // Everything else, by the name it has in every sink: "validation_metrics/loss", "moe/load_max_over_mean",
  // "moe/load_max_over_mean/layer.3/image", "data/epoch".
  std::map<std::string, double> extra = {};

  // Fills tokens_per_second, tflops and mfu from `tokens`, `seconds`, the step's needed FLOPs and the machine's peak.
  void set_rates(double step_flops, double peak_gflops);
};

class MetricsSink {
 public:
  virtual ~MetricsSink() = default;
  virtual void write(const StepMetrics& metrics) = 0;
};

// One line of metrics.jsonl, without the line break: loss, grad_norm and other reals with 9 significant digits; what is not
// finite becomes null.
std::string to_json(const StepMetrics& metrics);

// `OUT/metrics.jsonl`, one object a step. Each line is appended by one system call.
class MetricsFile : public MetricsSink {
 public:
  // `last_step`: the step that training resumes after, 0 for a new run. Lines of later steps, and a line torn by a crash, are
  // removed (the file is replaced as a whole), so that it holds each step once. Throws file::FileError.
  MetricsFile(std::filesystem::path path, int64_t last_step);
  void write(const StepMetrics& metrics) override;

 private:
  std::filesystem::path path_;
};

// Names and values of all scalars as dashboards know them: loss_metrics/global_avg_loss, grad_norm, lr, throughput(tps), tflops,
// mfu(%), time_metrics/end_to_end(s), time_metrics/data_loading(s), time_metrics/data_loading(%), memory/rss(GiB), then `extra`.
std::vector<std::pair<std::string, double>> dashboard_scalars(const StepMetrics& metrics);

struct MemoryUse {
  int64_t rss_bytes = 0;       // resident now
  int64_t peak_rss_bytes = 0;  // highest since the process began
  int64_t machine_bytes = 0;   // memory of the machine
  int64_t available_bytes = 0;  // of it, without swapping
};
MemoryUse memory_use();  // of this process, from /proc

// GFLOP/s of at::mm on 2048 x 2048 matrices with the threads that libtorch is set to: the best of three after a warm-up.
double measure_peak_gflops(at::ScalarType type = at::kFloat);

}  // namespace hyperparallel::train
