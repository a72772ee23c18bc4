// Fixtures of tests/golden/optim and their tolerances.
#pragma once

#include <gtest/gtest.h>
#include "base/aten.h"

#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "checkpoint/safetensors.h"

namespace hyperparallel::optim {

inline nlohmann::json golden_json(const std::string& file) {
  return nlohmann::json::parse(std::ifstream(std::string(HP_SOURCE_DIR "/tests/golden/optim/") + file));
}

inline std::map<std::string, at::Tensor> golden_tensors(const std::string& file) {
  return checkpoint::read_all(std::string(HP_SOURCE_DIR "/tests/golden/optim/") + file);
}

// FP32 code: largest difference <= max(10 e, 2e-6 m); FP64 code: <= 1e-12 m. `error` is [e, m].
inline void expect_close(const at::Tensor& actual, const at::Tensor& expected, const nlohmann::json& error,
                         const std::string& what) {
  const double m = error[1];
  const double limit = actual.scalar_type() == at::kDouble ? 1e-12 * m : std::max(10 * error[0].get<double>(), 2e-6 * m);
  EXPECT_LE((actual.to(at::kDouble) - expected).abs().max().item<double>(), limit) << what;
}

}  // namespace hyperparallel::optim
