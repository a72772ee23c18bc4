// The operations of a text model that have kernels of our own, each against a composition of library calls.
#pragma once

#include <vector>

#include "models/adapter/family.h"
#include "models/deepseek_v41/config.h"

namespace hyperparallel::models::deepseek_v41 {

std::vector<KernelBenchmarkMaker> kernel_benchmarks(const TextConfig& text, int64_t tokens, at::ScalarType compute);

}  // namespace hyperparallel::models::deepseek_v41
