#include "engine/memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <malloc.h>

#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

#include "engine/block_cache.h"

namespace hyperparallel::engine {
namespace {

constexpr size_t kFromCache = 1 << 20;  // smaller tensors lie in the heap
constexpr size_t kAlignment = 64;

std::atomic<int64_t> live{0}, peak{0};

void raise_peak(int64_t bytes) {
  int64_t seen = peak.load();
  while (bytes > seen && !peak.compare_exchange_weak(seen, bytes)) {
  }
}

BlockCache& blocks() {
  static auto* const cache = new BlockCache;  // tensors of static lifetime are freed after all statics
  return *cache;
}

// In front of a tensor's bytes.
struct Header {
  size_t bytes;  // of the tensor
  size_t block;  // of the cache's block; 0: from the heap
};
static_assert(sizeof(Header) <= kAlignment);

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) return {nullptr, nullptr, &release, c10::Device(c10::kCPU)};
    BlockCache::Block block{nullptr, 0};
    if (bytes >= kFromCache) {
      block = blocks().take(bytes + kAlignment);
    } else if (posix_memalign(&block.memory, kAlignment, bytes + kAlignment) != 0) {
      throw std::bad_alloc();
    }
    *static_cast<Header*>(block.memory) = {bytes, block.size};
    raise_peak(live.fetch_add(static_cast<int64_t>(bytes)) + static_cast<int64_t>(bytes));
    void* const data = static_cast<char*>(block.memory) + kAlignment;
    return {data, data, &release, c10::Device(c10::kCPU)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, size_t bytes) const override { std::memcpy(to, from, bytes); }

 private:
  static void release(void* data) {
    if (data == nullptr) return;
    void* const memory = static_cast<char*>(data) - kAlignment;
    const Header header = *static_cast<Header*>(memory);
    live.fetch_sub(static_cast<int64_t>(header.bytes));
    if (header.block > 0) {
      blocks().give_back({memory, header.block});
    } else {
      std::free(memory);
    }
  }
};

}  // namespace

void count_allocations() {
  static CountingAllocator allocator;
  static const bool installed = [] {
    // Fixed thresholds: they would grow with freed blocks, and what is freed below them stays resident.
    mallopt(M_MMAP_THRESHOLD, 4 << 20);
    mallopt(M_TRIM_THRESHOLD, 64 << 20);
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
