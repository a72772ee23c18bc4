#include "engine/memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <malloc.h>
#include <sys/mman.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

namespace hyperparallel::engine {
namespace {

constexpr size_t kLargeBlock = 64 << 20;  // blocks of this size come from the system one by one and go back to it
constexpr size_t kHugePage = 2 << 20;

std::atomic<int64_t> live{0}, peak{0};

void raise_peak(int64_t bytes) {
  int64_t seen = peak.load();
  while (bytes > seen && !peak.compare_exchange_weak(seen, bytes)) {
  }
}

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &release, c10::Device(c10::kCPU)};
    void* memory = nullptr;
    const bool is_large = bytes >= kLargeBlock;
    if (posix_memalign(&memory, is_large ? kHugePage : 64, bytes) != 0) throw std::bad_alloc();
    // Such a block is fresh from the system: 2 MiB at a page fault rather than 4 KiB.
    if (is_large) madvise(memory, bytes / kHugePage * kHugePage, MADV_HUGEPAGE);
    const int64_t now =
        live.fetch_add(static_cast<int64_t>(malloc_usable_size(memory))) + static_cast<int64_t>(malloc_usable_size(memory));
    raise_peak(now);
    return {memory, memory, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }

 private:
  static void release(void* memory) {
    if (memory == nullptr) return;
    live.fetch_sub(static_cast<int64_t>(malloc_usable_size(memory)));
    std::free(memory);
  }
};

}  // namespace

void count_allocations() {
  static CountingAllocator allocator;
  static const bool installed = [] {
    // Fixed thresholds: without the first, freed memory stays resident as the threshold grows; without the second, every freed
    // block at the top of the heap goes back to the system and is faulted in again by the next.
    mallopt(M_MMAP_THRESHOLD, kLargeBlock);
    mallopt(M_TRIM_THRESHOLD, 256 << 20);
    c10::SetCPUAllocator(&allocator, /*priority=*/100);
    return true;
  }();
  (void)installed;
}

int64_t allocated_bytes() {
  return live.load();
}
int64_t peak_allocated_bytes() {
  return peak.load();
}
void reset_peak_allocated_bytes() {
  peak.store(live.load());
}
PeakScope::~PeakScope() {
  raise_peak(outer_);
}

}  // namespace hyperparallel::engine
