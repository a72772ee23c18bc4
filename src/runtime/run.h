// Runs plans on the cores that the calling thread may use.
//
// The workers are the threads of at::parallel_for: as many as at::get_num_threads() says, one inside another parallel region. A
// worker takes the first ready task, does it, and wakes those that waited for it; there is no other order between tasks.
// While a trace is recorded (base/trace.h), every task can be a span of its kind, and every run one of the category `plan`.
#pragma once

#include <functional>

#include "runtime/plan.h"

namespace hyperparallel::runtime {

// Does the tile `tile` of stage `stage`; `worker` counts from 0 to below workers(), for scratch memory. Called from many threads.
using Body = std::function<void(int stage, int tile, int worker)>;

// How many workers a run that the calling thread starts can have.
int workers();

// Returns when all tasks are done; the first exception that a task throws ends the run and comes out here. The same plan may run
// on several threads at once.
void run(const Plan& plan, const Body& body);

// The same of so many tasks of one vector stage that wait for nothing; body(task). `name` is a literal.
void run_independent(const char* name, int64_t tasks, const std::function<void(int64_t task)>& body);

// Whether traces show tasks; they do not at first.
void trace_tasks(bool shown);

}  // namespace hyperparallel::runtime
