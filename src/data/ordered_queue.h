// Work ahead of time in a fixed order: tasks run on worker threads, results come out in the order of submission.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <future>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "base/trace.h"

namespace hyperparallel::data {

// Used by one thread. Tasks start in order; with no workers a task runs when its result is asked for. The destructor drops tasks
// that have not begun and waits for those that have.
template <class Result>
class OrderedQueue {
 public:
  // Threads are called NAME 0, NAME 1 and so on in traces.
  OrderedQueue(int64_t workers, const std::string& name) {
    for (int64_t i = 0; i < workers; ++i) {
      threads_.emplace_back([this, thread = name + " " + std::to_string(i)] {
        trace::set_thread_name(thread);
        work();
      });
    }
  }
  ~OrderedQueue() {
    {
      const std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }
  OrderedQueue(const OrderedQueue&) = delete;
  OrderedQueue& operator=(const OrderedQueue&) = delete;

  void submit(std::function<Result()> task) {
    if (threads_.empty()) {
      results_.push_back(std::async(std::launch::deferred, std::move(task)));
      return;
    }
    std::packaged_task<Result()> job(std::move(task));
    results_.push_back(job.get_future());
    {
      const std::lock_guard lock(mutex_);
      jobs_.push_back(std::move(job));
    }
    wake_.notify_one();
  }

  // The result of the oldest task, or the exception it threw. There must be one.
  Result pop() {
    std::future<Result> result = std::move(results_.front());
    results_.pop_front();
    return result.get();
  }

  int64_t size() const { return static_cast<int64_t>(results_.size()); }  // submitted and not popped

 private:
  void work() {
    for (;;) {
      std::packaged_task<Result()> job;
      {
        std::unique_lock lock(mutex_);
        wake_.wait(lock, [this] { return stopping_ || !jobs_.empty(); });
        if (stopping_) return;
        job = std::move(jobs_.front());
        jobs_.pop_front();
      }
      job();  // exceptions go into the future
    }
  }

  std::deque<std::future<Result>> results_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::packaged_task<Result()>> jobs_;
  bool stopping_ = false;
  std::vector<std::thread> threads_;
};

}  // namespace hyperparallel::data
