// Memory for large tensors: freed blocks serve again, whole, in parts or together with their neighbours, instead of going back to
// the system, which would hand them out again page by page, zeroed.
//
// NOTE [No more than the peak]: what a cache keeps must not make a process larger than its tensors do. Before new memory is
// touched, kept ranges go back to the system, those that waited longest first, until all together is within the most bytes that
// were ever in use at once, and a little more: without that, sizes that come and go would be swapped for each other.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <utility>
#include <vector>

namespace hyperparallel::engine {

class BlockCache {
 public:
  struct Block {
    void* memory;
    size_t size;  // what was asked for in whole pages
  };
  static constexpr size_t kSlack = 256 << 20;  // bytes beyond the peak

  BlockCache() = default;
  ~BlockCache();  // of no block that is still taken
  BlockCache(const BlockCache&) = delete;
  BlockCache& operator=(const BlockCache&) = delete;

  // The smallest kept range that it fits into, or new memory; aligned to pages. What is in it is anything. Throws std::bad_alloc.
  // Thread-safe, as all.
  Block take(size_t bytes);
  void give_back(Block block);

  size_t in_use() const;  // bytes of blocks that are taken
  size_t kept() const;    // and of freed ones that the system has not got back

 private:
  using Address = uintptr_t;
  // Free ranges: kept ones have pages, others have none (any more). No two of a kind touch.
  struct Range {
    size_t size;
    bool is_kept;
    uint64_t since;
  };
  void add_range(Address begin, Range range);
  void erase_range(std::map<Address, Range>::iterator range);
  // Takes `size` bytes off the front of a range that has as many.
  Address cut(std::map<Address, Range>::iterator range, size_t size);
  void make_room(size_t bytes);
  std::map<Address, Range>::iterator find_untouched(size_t size);  // maps more where there is none

  mutable std::mutex mutex_;
  std::map<Address, Range> ranges_;
  std::set<std::pair<size_t, Address>> kept_by_size_;
  std::vector<std::pair<Address, size_t>> mapped_;
  size_t in_use_ = 0, kept_ = 0, most_in_use_ = 0;
  uint64_t clock_ = 0;
};

}  // namespace hyperparallel::engine
