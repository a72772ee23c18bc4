// Checks the model against a fixture: config.json, weights.safetensors, case.safetensors, errors.json, notes.json in one folder,
// in the format of tests/golden/README.md. Only the parts that a case has are built.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "engine/schedule.h"

namespace hyperparallel::train {

struct VerifyOptions {
  bool float64 = false;  // the reference path in double: what remains is the rounding in the files
  engine::RecomputePolicy recompute;
  int64_t attention_chunk = 128, index_chunk_elements = 8 << 20, cross_entropy_chunk = 1024;
};

struct VerifyRow {
  std::string name;
  std::string shape;
  double absolute = 0;  // largest |ours - theirs|; for integers the number of differing elements
  double relative = 0;  // the same over the tensor's largest value
  double limit = 0;     // `absolute` may be this large
  bool pass = false;
};

struct VerifyReport {
  std::vector<VerifyRow> rows;
  std::vector<std::string> not_compared;  // tensors of the case that are neither inputs nor known outputs
  bool pass() const;
  const VerifyRow& worst() const;  // largest absolute / limit, failures first; there is at least one row
};

// Runs forward and backward of the case and compares every tensor it holds. Throws CheckpointError or ConfigError for a folder
// that is no case, and DataError, which names file and key, for numbers in errors.json or notes.json that cannot be used and
// tensors of documents or images that the case does not have.
VerifyReport verify_case(const std::filesystem::path& folder, const VerifyOptions& options);

}  // namespace hyperparallel::train
