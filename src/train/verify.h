// Checks the model against a fixture: config.json, weights.safetensors, case.safetensors, errors.json, notes.json in one folder,
// in the format of tests/golden/README.md. Only the parts that a case has are built.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "dist/world.h"
#include "train/config.h"

namespace hyperparallel::train {

struct VerifyOptions {
  bool float64 = false;  // the reference path in double: what remains is the rounding in the files
  Config config;         // of it, the sections `parallel`, `recompute` and `kernels`
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
  // Stored codes that came out another way than in double where a row failed, NOTE [Ties of stored codes]. Their rows "tie:..."
  // come first; if all are proven, rows that failed behind them are those of a run in double, with its limits.
  int64_t ties = 0;
  bool pass() const;
  const VerifyRow& worst() const;  // largest absolute / limit, failures first; there is at least one row
};

// Runs forward and backward of the case and compares every tensor it holds. Throws CheckpointError or ConfigError for a folder
// that is no case, and DataError, which names file and key, for numbers in errors.json or notes.json that cannot be used and
// tensors of documents or images that the case does not have.
// With a world every rank of it calls this, gets the same report, whose rows are the worst of all ranks, and compares with the
// whole fixture what it has put together from the ranks that hold parts. Data-parallel ranks run the case each for itself.
VerifyReport verify_case(const std::filesystem::path& folder, const VerifyOptions& options, dist::World* world = nullptr);

// Throws CheckpointError or ConfigError, before anything is loaded, for a folder that is no case, and ConfigError where so many
// ranks or the degrees do not fit it.
void check_case_layout(const std::filesystem::path& folder, const VerifyOptions& options, int64_t world_size);

}  // namespace hyperparallel::train
