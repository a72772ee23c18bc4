#include "engine/memory_profile.h"

#include <algorithm>

#include "base/trace.h"

namespace hyperparallel::engine {
namespace {

bool runs_a_segment(const Action& action) {
  return action.kind == ActionKind::kForward || action.kind == ActionKind::kRecompute || action.kind == ActionKind::kBackward;
}

}  // namespace

void MemoryProfile::on_action_begin(const Executor&, const Action& action) {
  if (!runs_a_segment(action)) return;
  before_ = allocated_bytes();
  scope_.reset();  // left by a run that was broken off
  scope_ = std::make_unique<PeakScope>();
}

void MemoryProfile::on_action_end(const Executor& executor, const Action& action) {
  if (!runs_a_segment(action)) return;
  const int64_t highest = peak_allocated_bytes();
  scope_.reset();
  SegmentMemory& row = segments_[{action.kind, action.index}];
  row.segment = executor.program().segments[action.index].name;
  row.pass = to_string(action.kind);
  row.highest_bytes = std::max(row.highest_bytes, highest);
  row.own_bytes = std::max(row.own_bytes, highest - before_);
  ++row.runs;
  trace::counter("tensors", "highest bytes", static_cast<double>(highest));
  trace::counter("tensors", "live bytes", static_cast<double>(allocated_bytes()));
}

std::vector<SegmentMemory> MemoryProfile::segments() const {
  std::vector<SegmentMemory> rows;
  for (const auto& [key, row] : segments_) rows.push_back(row);
  std::stable_sort(rows.begin(), rows.end(),
                   [](const SegmentMemory& a, const SegmentMemory& b) { return a.highest_bytes > b.highest_bytes; });
  return rows;
}

}  // namespace hyperparallel::engine
