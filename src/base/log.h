// Logging through spdlog: `log::info("read {} rows", n)`. Messages go to standard error, so that standard output stays data.
#pragma once

#include <spdlog/spdlog.h>

namespace hyperparallel::log {

using spdlog::debug;
using spdlog::error;
using spdlog::info;
using spdlog::warn;

// Installs the process-wide logger on standard error. Colour only on a terminal. Call once from main.
void init();

}  // namespace hyperparallel::log
