#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>
#include <spdlog/spdlog.h>

namespace hyperparallel::log {
namespace {

constexpr spdlog::level::level_enum kSeverity[] = {spdlog::level::debug, spdlog::level::info, spdlog::level::warn,
                                                   spdlog::level::err};

}  // namespace

void detail::write(Level level, fmt::string_view format, fmt::format_args arguments) {
  const auto severity = kSeverity[static_cast<int>(level)];
  if (spdlog::should_log(severity)) spdlog::log(severity, std::string_view(fmt::vformat(format, arguments)));
}

void init() {
  auto logger = spdlog::stderr_color_mt("hyperparallel");
  logger->set_pattern("[%H:%M:%S] %^%l%$ %v");
  spdlog::set_default_logger(logger);
}

}  // namespace hyperparallel::log
