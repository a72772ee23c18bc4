// Values that rest in a file between their last use in forward and their first in backward. A thread writes and reads while
// segments run; the schedule says when each sets out and when it must be there (NOTE [Offload] in schedule.h).
#pragma once

#include "base/aten.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <filesystem>
#include <functional>
#include <future>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/scratch_file.h"

namespace hyperparallel::engine {

class Offload {
 public:
  using Key = std::pair<int32_t, int>;  // value index, micro-batch

  // The file lies in `folder` and has no name. Throws file::FileError.
  explicit Offload(const std::filesystem::path& folder);
  ~Offload();

  // The four stations of a value, in this order; all for one value are called by one thread. The waits throw file::FileError,
  // for a full disk for example. `name` is for the trace.
  void launch_write(Key key, const std::string& name, at::Tensor tensor);  // contiguous; held until wait_write
  void wait_write(Key key);
  void launch_read(Key key);
  at::Tensor wait_read(Key key);  // the same bits; its place in the file is free again

  bool busy() const { return under_way_ > 0; }  // some tensor is held for a write or a read
  int64_t written_bytes() const { return written_bytes_; }
  void abandon();  // after an exception: forgets all values

 private:
  struct Entry {
    std::string name;
    int64_t offset, bytes;
    std::vector<int64_t> sizes;
    at::ScalarType type;
    at::Tensor tensor;       // while it is under way
    std::future<void> done;  // likewise
  };
  int64_t take_place(int64_t bytes);
  Entry& entry(Key key);
  void finish(Entry& entry);
  std::future<void> enqueue(std::function<void()> job);
  void work();

  file::ScratchFile file_;
  int64_t file_end_ = 0;
  std::map<int64_t, std::vector<int64_t>> free_;  // bytes -> offsets of places of that size
  std::map<Key, Entry> entries_;
  int64_t under_way_ = 0, written_bytes_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::packaged_task<void()>> jobs_;
  bool is_ending_ = false;
  std::thread worker_;  // last: uses the rest
};

}  // namespace hyperparallel::engine
