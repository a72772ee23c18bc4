// TensorBoard event files, written without its library: OUT/tb/events.out.tfevents.<seconds>.<host>.<pid>.
//
// The file is a row of TFRecord frames: length (8 bytes), masked CRC-32C of the length (4), payload, masked CRC-32C of the
// payload (4), little-endian. A payload is a protobuf Event {1: double wall_time, 2: int64 step, 3: string file_version, 5:
// Summary, 7: SessionLog}; a Summary repeats Value {1: string tag, 2: float simple_value}.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "train/metrics.h"

namespace hyperparallel::train {

class TensorBoardFile : public MetricsSink {
 public:
  // Starts a new file in `folder`, made when absent. `last_step`: the step that training resumes after, 0 for a new run; a
  // resumed run tells TensorBoard to forget what earlier files hold of later steps. Throws file::FileError.
  TensorBoardFile(const std::filesystem::path& folder, int64_t last_step);

  // Writes dashboard_scalars(); values that are not finite too.
  void write(const StepMetrics& metrics) override;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// CRC-32C (Castagnoli) of `bytes`, and the form that frames store: ((crc >> 15) | (crc << 17)) + 0xa282ead8.
uint32_t crc32c(std::string_view bytes);
uint32_t masked_crc32c(std::string_view bytes);

}  // namespace hyperparallel::train
