#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>

namespace hyperparallel::log {

void init() {
  auto logger = spdlog::stderr_color_mt("hyperparallel");
  logger->set_pattern("[%H:%M:%S] %^%l%$ %v");
  spdlog::set_default_logger(logger);
}

}  // namespace hyperparallel::log
