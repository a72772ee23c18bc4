// The progress line on the screen, in TorchTitan's order and with fixed digits, so that two runs can be compared with diff:
//   step: 12  loss: 5.43210  grad_norm: 1.2345  lr: 3.0e-04  memory: 1.23GiB(4.56%)  tps: 1,234  tflops: 0.41  mfu: 49.8%
#pragma once

#include <cstdio>
#include <string>

#include "train/metrics.h"

namespace hyperparallel::train {

// The line without colour and line break. `machine_bytes`: what the memory's percentage refers to.
std::string progress_line(const StepMetrics& metrics, int64_t machine_bytes);

class ProgressLine : public MetricsSink {
 public:
  // Prints step 1, every `interval`-th step and the last one to `stream`. A terminal gets colour and the time left. Warns once
  // when waiting for data has taken over 5 % of the time.
  ProgressLine(std::FILE* stream, int64_t interval, int64_t last_step);
  void write(const StepMetrics& metrics) override;

 private:
  void warn_of_slow_data(const StepMetrics& metrics);

  std::FILE* stream_;
  int64_t interval_, last_step_;
  bool terminal_;
  int64_t machine_bytes_;
  int64_t steps_seen_ = 0;
  double seconds_ = 0, data_seconds_ = 0;  // over the steps seen, the first left out
  bool warned_ = false;
};

}  // namespace hyperparallel::train
