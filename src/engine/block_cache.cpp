#include "engine/block_cache.h"

#include <sys/mman.h>

#include <algorithm>
#include <iterator>
#include <new>

namespace hyperparallel::engine {
namespace {

constexpr size_t kPage = 4096, kHugePage = 2 << 20;
constexpr size_t kMapped = size_t{1} << 30;  // address space that is asked for at a time; it takes no memory

size_t rounded(size_t bytes, size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

}  // namespace

BlockCache::~BlockCache() {
  for (const auto& [begin, size] : mapped_) munmap(reinterpret_cast<void*>(begin), size);
}

BlockCache::Block BlockCache::take(size_t bytes) {
  const size_t size = rounded(bytes, kPage);
  if (size < bytes) throw std::bad_alloc();
  std::lock_guard lock(mutex_);
  Address begin = 0;
  if (const auto found = kept_by_size_.lower_bound({size, 0}); found != kept_by_size_.end()) {
    begin = cut(ranges_.find(found->second), size);
  } else {
    make_room(size);
    begin = cut(find_untouched(size), size);
  }
  in_use_ += size;
  most_in_use_ = std::max(most_in_use_, in_use_);
  return {reinterpret_cast<void*>(begin), size};
}

void BlockCache::give_back(Block block) {
  std::lock_guard lock(mutex_);
  in_use_ -= block.size;
  add_range(reinterpret_cast<Address>(block.memory), {block.size, true, clock_++});
}

void BlockCache::add_range(Address begin, Range range) {
  auto after = ranges_.lower_bound(begin);
  if (after != ranges_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second.size == begin && before->second.is_kept == range.is_kept) {
      begin = before->first;
      range.size += before->second.size;
      erase_range(before);
    }
  }
  if (after != ranges_.end() && begin + range.size == after->first && after->second.is_kept == range.is_kept) {
    range.size += after->second.size;
    erase_range(after);
  }
  ranges_[begin] = range;
  if (!range.is_kept) return;
  kept_by_size_.emplace(range.size, begin);
  kept_ += range.size;
}

void BlockCache::erase_range(std::map<Address, Range>::iterator range) {
  if (range->second.is_kept) {
    kept_by_size_.erase({range->second.size, range->first});
    kept_ -= range->second.size;
  }
  ranges_.erase(range);
}

BlockCache::Address BlockCache::cut(std::map<Address, Range>::iterator range, size_t size) {
  const auto [begin, whole] = *range;
  erase_range(range);
  if (whole.size > size) add_range(begin + size, {whole.size - size, whole.is_kept, whole.since});
  return begin;
}

void BlockCache::make_room(size_t bytes) {
  const size_t limit = std::max(most_in_use_, in_use_ + bytes) + kSlack;
  while (in_use_ + kept_ + bytes > limit && kept_ > 0) {
    auto oldest = ranges_.end();
    for (auto range = ranges_.begin(); range != ranges_.end(); ++range) {
      if (range->second.is_kept && (oldest == ranges_.end() || range->second.since < oldest->second.since)) oldest = range;
    }
    const size_t needed = rounded(in_use_ + kept_ + bytes - limit, kHugePage), size = std::min(needed, oldest->second.size);
    const Address begin = cut(oldest, size);
    madvise(reinterpret_cast<void*>(begin), size, MADV_DONTNEED);
    add_range(begin, {size, false, 0});
  }
}

std::map<BlockCache::Address, BlockCache::Range>::iterator BlockCache::find_untouched(size_t size) {
  const auto fits = [&](const auto& entry) { return !entry.second.is_kept && entry.second.size >= size; };
  if (const auto found = std::ranges::find_if(ranges_, fits); found != ranges_.end()) return found;
  const size_t room = std::max(kMapped, rounded(size, kHugePage));
  if (room < size) throw std::bad_alloc();
  void* const fresh = mmap(nullptr, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (fresh == MAP_FAILED) throw std::bad_alloc();
  madvise(fresh, room, MADV_HUGEPAGE);  // 2 MiB at a page fault rather than 4 KiB
  mapped_.emplace_back(reinterpret_cast<Address>(fresh), room);
  add_range(reinterpret_cast<Address>(fresh), {room, false, 0});
  return std::ranges::find_if(ranges_, fits);
}

size_t BlockCache::in_use() const {
  std::lock_guard lock(mutex_);
  return in_use_;
}
size_t BlockCache::kept() const {
  std::lock_guard lock(mutex_);
  return kept_;
}

}  // namespace hyperparallel::engine
