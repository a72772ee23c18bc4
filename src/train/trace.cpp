#include "train/trace.h"

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/trace.h"
#include "train/metrics.h"

namespace hyperparallel::train {

TraceWindow::TraceWindow(std::filesystem::path folder, int64_t first_step, int64_t steps)
    : folder_(std::move(folder)), first_step_(first_step), steps_(steps) {}

TraceWindow::~TraceWindow() {
  if (!begun_) return;
  try {
    write(latest_);
  } catch (const Error& error) {
    log::error("the trace is lost: {}", error.what());
  }
}

void TraceWindow::before_step(int64_t step) {
  if (begun_ || step < first_step_ || step >= first_step_ + steps_) return;
  begun_ = latest_ = step;
  trace::start();
}

void TraceWindow::after_step(int64_t step) {
  if (!begun_) return;
  latest_ = step;
  trace::counter("memory", "resident bytes", static_cast<double>(memory_use().rss_bytes));
  if (step + 1 >= first_step_ + steps_) write(step);
}

void TraceWindow::write(int64_t last_step) {
  const auto path = folder_ / fmt::format("trace-steps-{}-{}.json", begun_, last_step);
  begun_ = 0;
  file::create_folders(folder_);
  trace::stop(path);
  log::info("wrote the trace {}; open it at https://ui.perfetto.dev", path.string());
}

}  // namespace hyperparallel::train
