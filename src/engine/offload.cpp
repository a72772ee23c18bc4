#include "engine/offload.h"

#include "base/error.h"
#include "base/trace.h"

namespace hyperparallel::engine {

Offload::Offload(const std::filesystem::path& folder) : file_(folder), worker_([this] { work(); }) {}

Offload::~Offload() {
  {
    const std::lock_guard lock(mutex_);
    is_ending_ = true;
  }
  changed_.notify_all();
  worker_.join();
}

void Offload::work() {
  trace::set_thread_name("offload");
  for (;;) {
    std::packaged_task<void()> job;
    {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return is_ending_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    job();
  }
}

std::future<void> Offload::enqueue(std::function<void()> job) {
  std::packaged_task<void()> task(std::move(job));
  std::future<void> done = task.get_future();
  {
    const std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(task));
  }
  changed_.notify_all();
  return done;
}

// Values have the same sizes in every step, so that places of one size fit the next ones.
int64_t Offload::take_place(int64_t bytes) {
  std::vector<int64_t>& same = free_[bytes];
  if (same.empty()) {
    file_end_ += bytes;
    return file_end_ - bytes;
  }
  const int64_t offset = same.back();
  same.pop_back();
  return offset;
}

Offload::Entry& Offload::entry(Key key) {
  const auto it = entries_.find(key);
  HP_CHECK(it != entries_.end(), "value {} of micro-batch {} is not offloaded", key.first, key.second);
  return it->second;
}

void Offload::finish(Entry& entry) {
  HP_CHECK(entry.done.valid(), "`{}` is neither written nor read", entry.name);
  --under_way_;
  entry.done.get();
}

void Offload::launch_write(Key key, const std::string& name, at::Tensor tensor) {
  HP_CHECK(tensor.is_contiguous(), "`{}` is not contiguous", name);
  const auto bytes = static_cast<int64_t>(tensor.nbytes());
  const auto [it, is_new] =
      entries_.try_emplace(key, Entry{name, take_place(bytes), bytes, tensor.sizes().vec(), tensor.scalar_type(), {}, {}});
  HP_CHECK(is_new, "`{}` is offloaded twice", name);
  Entry& entry = it->second;
  entry.tensor = std::move(tensor);
  entry.done = enqueue([this, data = entry.tensor.const_data_ptr(), name, offset = entry.offset, bytes] {
    trace::Scope scope("write " + name, "offload");
    file_.write(offset, data, static_cast<size_t>(bytes));
  });
  ++under_way_;
  written_bytes_ += bytes;
}

void Offload::wait_write(Key key) {
  Entry& entry = this->entry(key);
  finish(entry);
  entry.tensor = at::Tensor();
}

void Offload::launch_read(Key key) {
  Entry& entry = this->entry(key);
  HP_CHECK(!entry.done.valid(), "`{}` is read before it was written", entry.name);
  entry.tensor = at::empty(entry.sizes, at::TensorOptions().dtype(entry.type));
  entry.done =
      enqueue([this, data = entry.tensor.mutable_data_ptr(), name = entry.name, offset = entry.offset, bytes = entry.bytes] {
        trace::Scope scope("read " + name, "offload");
        file_.read(offset, data, static_cast<size_t>(bytes));
      });
  ++under_way_;
}

at::Tensor Offload::wait_read(Key key) {
  auto node = entries_.extract(key);
  HP_CHECK(!node.empty(), "value {} of micro-batch {} is not offloaded", key.first, key.second);
  Entry& entry = node.mapped();
  finish(entry);
  free_[entry.bytes].push_back(entry.offset);
  return std::move(entry.tensor);
}

void Offload::abandon() {
  for (auto& [key, entry] : entries_) {
    if (entry.done.valid()) entry.done.wait();
    free_[entry.bytes].push_back(entry.offset);
  }
  entries_.clear();
  under_way_ = 0;
}

}  // namespace hyperparallel::engine
