#include "runtime/plan.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace hyperparallel::runtime {

const char* to_string(TaskKind kind) {
  switch (kind) {
    case TaskKind::kMatrix:
      return "matrix";
    case TaskKind::kVector:
      return "vector";
    case TaskKind::kCommunication:
      return "communication";
  }
  return "?";
}

int Plan::add_stage(std::string name, TaskKind kind) {
  stages_.push_back({std::move(name), kind});
  return static_cast<int>(stages_.size()) - 1;
}

int Plan::add_counter(std::string name) {
  counters_.push_back(std::move(name));
  return static_cast<int>(counters_.size()) - 1;
}

void Plan::add_task(int stage, int tile, Wait wait, std::span<const int> bumps) {
  HP_CHECK(!closed_, "a task is added to a closed plan");
  HP_CHECK(stage >= 0 && stage < static_cast<int>(stages_.size()), "stage {} of {}", stage, stages_.size());
  for (int counter : bumps)
    HP_CHECK(counter >= 0 && counter < static_cast<int>(counters_.size()), "counter {} of {}", counter, counters_.size());
  HP_CHECK(wait.counter < static_cast<int>(counters_.size()), "counter {} of {}", wait.counter, counters_.size());
  if (wait.threshold <= 0) wait = {};
  tasks_.push_back({stage, tile, wait});
  bumps_.insert(bumps_.end(), bumps.begin(), bumps.end());
  first_bump_.push_back(static_cast<int32_t>(bumps_.size()));
}

Plan::Range Plan::waiters(int counter, int value) const {
  const int32_t *first = waiters_.data() + first_waiter_[counter], *last = waiters_.data() + first_waiter_[counter + 1];
  first = std::lower_bound(first, last, value, [&](int32_t task, int wanted) { return tasks_[task].wait.threshold < wanted; });
  const int32_t* end = first;
  while (end != last && tasks_[*end].wait.threshold == value) ++end;
  return {first, end};
}

std::string Plan::describe_wait(int task, int value) const {
  const Task& t = tasks_[task];
  return fmt::format("{} {} waits for {}: {} of {}", stages_[t.stage].name, t.tile, counters_[t.wait.counter], value,
                     t.wait.threshold);
}

void Plan::close() {
  first_waiter_.assign(counters_.size() + 1, 0);
  for (const Task& task : tasks_)
    if (task.wait.counter >= 0) ++first_waiter_[task.wait.counter + 1];
  std::partial_sum(first_waiter_.begin(), first_waiter_.end(), first_waiter_.begin());
  waiters_.assign(first_waiter_.back(), 0);
  std::vector<int32_t> next(first_waiter_.begin(), first_waiter_.end() - 1), ready;
  for (int32_t task = 0; task < static_cast<int32_t>(tasks_.size()); ++task) {
    if (const int counter = tasks_[task].wait.counter; counter >= 0) {
      waiters_[next[counter]++] = task;
    } else {
      ready.push_back(task);
    }
  }
  for (size_t c = 0; c < counters_.size(); ++c) {
    std::stable_sort(waiters_.begin() + first_waiter_[c], waiters_.begin() + first_waiter_[c + 1],
                     [&](int32_t a, int32_t b) { return tasks_[a].wait.threshold < tasks_[b].wait.threshold; });
  }
  // One worker's run, without the work.
  std::vector<int> values(counters_.size(), 0);
  std::vector<bool> done(tasks_.size(), false);
  for (size_t i = 0; i < ready.size(); ++i) {
    done[ready[i]] = true;
    for (int counter : bumps(ready[i])) {
      const Range woken = waiters(counter, ++values[counter]);
      ready.insert(ready.end(), woken.begin(), woken.end());
    }
  }
  closed_ = ready.size() == tasks_.size();
  if (closed_) return;
  std::string waiting;
  size_t more = tasks_.size() - ready.size();
  for (size_t task = 0, named = 0; task < tasks_.size() && named < 8; ++task) {
    if (done[task]) continue;
    waiting += "\n  " + describe_wait(static_cast<int>(task), values[tasks_[task].wait.counter]);
    ++named, --more;
  }
  throw InternalError("a plan of {} tasks in which {} wait for ever:{}{}", tasks_.size(), tasks_.size() - ready.size(), waiting,
                      more > 0 ? fmt::format("\n  and {} more", more) : "");
}

}  // namespace hyperparallel::runtime
