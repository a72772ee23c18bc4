// Runs plans on the cores that the calling thread may use.
//
// The workers are the threads of at::parallel_for: as many as at::get_num_threads() says, one inside another parallel region. A
// worker takes the first ready task, does it, and wakes those that waited for it; there is no other order between tasks.
// While a trace is recorded (base/trace.h), every task can be a span of its kind, and every run one of the category `plan`. Spans
// of kind communication are the times in which a worker has nothing to do but wait for it.
#pragma once

#include <algorithm>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/plan.h"

namespace hyperparallel::runtime {

// Does the tile `tile` of stage `stage`; `worker` counts from 0 to below workers(), for scratch memory. Called from many threads.
using Body = std::function<void(int stage, int tile, int worker)>;

// Whether the communication task `tile` of stage `stage` is done; it may start it, and must not wait. One thread at a time calls
// it.
using Poll = std::function<bool(int stage, int tile)>;

// How many workers a run that the calling thread starts can have.
int workers();

// Returns when all tasks are done; the first exception that a task throws ends the run and comes out here. The same plan may run
// on several threads at once. `body` does the tasks that take a worker, `poll` those of kind kCommunication. Returns for how many
// seconds the calling thread had nothing to do while communication was under way.
double run(const Plan& plan, const Body& body, const Poll& poll = {});

// The same of so many tasks of one vector stage that wait for nothing. `name` is a literal.
void run_independent(const char* name, int64_t tasks, const std::function<void(int64_t task, int worker)>& body);

// The same of [0, count) in blocks of `block`, the last one of what is left; body(begin, end, worker).
template <class Body>
void run_blocks(const char* name, int64_t count, int64_t block, const Body& body) {
  run_independent(name, (count + block - 1) / block,
                  [&](int64_t task, int worker) { body(task * block, std::min(count, (task + 1) * block), worker); });
}

// Scratch memory of one run's workers; each makes its own when it first needs it.
template <class S>
class WorkerScratch {
 public:
  WorkerScratch() : made_(workers()) {}
  // `arguments`: of the constructor.
  template <class... Arguments>
  S& of(int worker, const Arguments&... arguments) {
    if (!made_[worker]) made_[worker] = std::make_unique<S>(arguments...);
    return *made_[worker];
  }

 private:
  std::vector<std::unique_ptr<S>> made_;
};

// Whether traces show tasks; they do not at first.
void trace_tasks(bool shown);

}  // namespace hyperparallel::runtime
