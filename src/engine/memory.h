// Counts what libtorch's CPU allocator hands out, so that the ledger can be checked against live bytes and the profiler can tell
// the high-water mark by segment.
#pragma once

#include <cstdint>

namespace hyperparallel::engine {

// Replaces libtorch's CPU allocator by one that counts (64-byte aligned, too), and that keeps large blocks for the next tensors
// (block_cache.h). Call once, before the first tensor is made; a second call does nothing.
void count_allocations();

int64_t allocated_bytes();       // live now; 0 when allocations are not counted
int64_t peak_allocated_bytes();  // since the last reset
void reset_peak_allocated_bytes();

// The peak of a part of what is being measured: from construction on, peak_allocated_bytes() is that of the scope, and
// afterwards that of the whole again.
class PeakScope {
 public:
  PeakScope() : outer_(peak_allocated_bytes()) { reset_peak_allocated_bytes(); }
  ~PeakScope();
  PeakScope(const PeakScope&) = delete;
  PeakScope& operator=(const PeakScope&) = delete;

 private:
  int64_t outer_;
};

}  // namespace hyperparallel::engine
