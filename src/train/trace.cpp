#include "train/trace.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/trace.h"
#include "train/metrics.h"

namespace hyperparallel::train {

TraceWindow::TraceWindow(std::filesystem::path folder, int64_t first_step, int64_t steps, engine::Executor* executor)
    : folder_(std::move(folder)), first_step_(first_step), steps_(steps), executor_(executor) {}

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
  if (!executor_) return;
  memory_ = std::make_unique<engine::MemoryProfile>();
  executor_->add_observer(*memory_);
}

void TraceWindow::after_step(int64_t step) {
  if (!begun_) return;
  latest_ = step;
  trace::counter("memory", "resident bytes", static_cast<double>(memory_use().rss_bytes));
  if (step + 1 >= first_step_ + steps_) write(step);
}

void TraceWindow::write(int64_t last_step) {
  const std::string steps = fmt::format("steps-{}-{}.json", begun_, last_step);
  const auto path = folder_ / ("trace-" + steps);
  begun_ = 0;
  if (memory_) executor_->remove_observer(*memory_);
  file::create_folders(folder_);
  trace::stop(path);
  log::info("wrote the trace {}; open it at https://ui.perfetto.dev", path.string());
  if (memory_) write_memory(folder_ / ("memory-" + steps));
  memory_.reset();
}

void TraceWindow::write_memory(const std::filesystem::path& path) {
  constexpr size_t kLogged = 10;
  constexpr double kMiB = 1 << 20;
  const std::vector<engine::SegmentMemory> segments = memory_->segments();
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  std::string table;
  for (const engine::SegmentMemory& row : segments) {
    if (rows.size() < kLogged) {
      table += fmt::format("\n{:>12.1f} {:>12.1f}  {} {}", static_cast<double>(row.highest_bytes) / kMiB,
                           static_cast<double>(row.own_bytes) / kMiB, row.pass, row.segment);
    }
    rows.push_back({{"segment", row.segment},
                    {"pass", row.pass},
                    {"highest_bytes", row.highest_bytes},
                    {"own_bytes", row.own_bytes},
                    {"runs", row.runs}});
  }
  file::write(path, nlohmann::ordered_json{{"segments", rows}}.dump(1) + "\n");
  log::info("wrote {}; most bytes of tensors alive in a segment, in MiB, all and its own:{}", path.string(), table);
}

}  // namespace hyperparallel::train
