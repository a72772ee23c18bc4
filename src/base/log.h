// Logging: `log::info("read {} rows", n)`. Messages go to standard error, so that standard output stays data.
//
// spdlog writes them; its headers stay out of ours, because each of its templates costs seconds in every file that logs.
#pragma once

#include <fmt/format.h>

namespace hyperparallel::log {

enum class Level { kDebug, kInfo, kWarning, kError };

namespace detail {
void write(Level level, fmt::string_view format, fmt::format_args arguments);
}

template <class... Args>
void debug(fmt::format_string<Args...> format, Args&&... args) {
  detail::write(Level::kDebug, format, fmt::make_format_args(args...));
}
template <class... Args>
void info(fmt::format_string<Args...> format, Args&&... args) {
  detail::write(Level::kInfo, format, fmt::make_format_args(args...));
}
template <class... Args>
void warn(fmt::format_string<Args...> format, Args&&... args) {
  detail::write(Level::kWarning, format, fmt::make_format_args(args...));
}
template <class... Args>
void error(fmt::format_string<Args...> format, Args&&... args) {
  detail::write(Level::kError, format, fmt::make_format_args(args...));
}

// Installs the process-wide logger on standard error. Colour only on a terminal. Call once from main.
void init();

}  // namespace hyperparallel::log
