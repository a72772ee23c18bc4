#include "train/progress.h"

#include <fmt/color.h>
#include <unistd.h>

#include <array>
#include <cmath>

#include "base/log.h"
#include "dist/launch.h"

namespace hyperparallel::train {
namespace {

std::string with_thousands(double value) {
  if (!std::isfinite(value)) return fmt::format("{}", value);
  const std::string digits = fmt::format("{:.0f}", value);
  std::string grouped;
  for (size_t i = 0; i < digits.size(); ++i) {
    if (i > 0 && (digits.size() - i) % 3 == 0) grouped += ',';
    grouped += digits[i];
  }
  return grouped;
}

std::string clock_text(double seconds) {
  const auto whole = static_cast<int64_t>(std::lround(seconds));
  if (whole < 3600) return fmt::format("{}:{:02}", whole / 60, whole % 60);
  return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
}

std::array<std::string, 8> fields(const StepMetrics& metrics, int64_t machine_bytes) {
  const auto rss = static_cast<double>(metrics.memory_rss_bytes);
  return {fmt::format("step: {}", metrics.step),
          fmt::format("loss: {:.5f}", metrics.loss),
          fmt::format("grad_norm: {:.4f}", metrics.grad_norm),
          fmt::format("lr: {:.1e}", metrics.lr),
          fmt::format("memory: {:.2f}GiB({:.2f}%)", rss / (1 << 30), rss / static_cast<double>(machine_bytes) * 100),
          fmt::format("tps: {}", with_thousands(metrics.tokens_per_second)),
          fmt::format("tflops: {:.2f}", metrics.tflops),
          fmt::format("mfu: {:.1f}%", metrics.mfu * 100)};
}

constexpr std::array kColours = {fmt::terminal_color::red,  fmt::terminal_color::green,   fmt::terminal_color::yellow,
                                 fmt::terminal_color::blue, fmt::terminal_color::magenta, fmt::terminal_color::cyan,
                                 fmt::terminal_color::cyan, fmt::terminal_color::green};

}  // namespace

std::string progress_line(const StepMetrics& metrics, int64_t machine_bytes) {
  return fmt::format("{}", fmt::join(fields(metrics, machine_bytes), "  "));
}

ProgressLine::ProgressLine(std::FILE* stream, int64_t interval, int64_t last_step)
    : stream_(stream),
      interval_(interval),
      last_step_(last_step),
      // Launchers connect their ranks to terminals that nobody looks at.
      terminal_(isatty(fileno(stream)) == 1 && dist::read_launch().launcher.empty()),
      machine_bytes_(memory_use().machine_bytes) {}

void ProgressLine::write(const StepMetrics& metrics) {
  if (++steps_seen_ > 1) {
    seconds_ += metrics.seconds;
    data_seconds_ += metrics.data_seconds;
  }
  warn_of_slow_data(metrics);
  if (metrics.step != 1 && metrics.step % interval_ != 0 && metrics.step != last_step_) return;
  if (!terminal_) {
    fmt::print(stream_, "{}\n", progress_line(metrics, machine_bytes_));
  } else {
    const auto parts = fields(metrics, machine_bytes_);
    for (size_t i = 0; i < parts.size(); ++i) fmt::print(stream_, "{}  ", fmt::styled(parts[i], fmt::fg(kColours[i])));
    const double each = steps_seen_ > 1 ? seconds_ / static_cast<double>(steps_seen_ - 1) : metrics.seconds;
    fmt::print(stream_, "{}\n",
               fmt::styled(clock_text(each * static_cast<double>(last_step_ - metrics.step)) + " left", fmt::emphasis::faint));
  }
  std::fflush(stream_);
}

void ProgressLine::warn_of_slow_data(const StepMetrics& metrics) {
  constexpr int64_t kSteps = 20;
  if (warned_ || steps_seen_ < kSteps || data_seconds_ <= 0.05 * seconds_) return;
  warned_ = true;
  log::warn("step {}: waiting for data took {:.0f} % of the time so far; more data.workers may help", metrics.step,
            data_seconds_ / seconds_ * 100);
}

}  // namespace hyperparallel::train
