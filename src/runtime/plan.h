// A plan: the tasks of one fused operation and what each waits for. It is built on the host once per shape and run any number of
// times (runtime/run.h).
//
//   Plan plan;
//   const int up = plan.add_stage("up", TaskKind::kMatrix), act = plan.add_stage("activation", TaskKind::kVector);
//   for (int tile = 0; tile < tiles; ++tile) {
//     const int done = plan.add_counter("up of tile " + std::to_string(tile));
//     plan.add_task(up, tile, {}, {done});             // bumps the counter when it ends
//     plan.add_task(act, tile, {done, 1}, {});         // waits until the counter is 1
//   }
//   plan.close();
//
// NOTE [Order]: of the tasks that are ready the one that was added first is taken first. So tasks are added in the order in which
// one worker would do them best: a tile from end to end rather than a stage from end to end. Which worker does a task, and when,
// must not matter to its result: sums that several tasks share are given an order by counters, or places of their own.
//
// NOTE [Communication]: a task of kind kCommunication takes no worker's time. Once it is ready it is under way: workers ask
// between other tasks, and when there is none, whether it is done, and only then its counters are bumped. What must be started in
// the same order on every rank is started by communication tasks that wait for each other and are done at once.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

namespace hyperparallel::runtime {

enum class TaskKind : uint8_t { kMatrix, kVector, kCommunication };
const char* to_string(TaskKind kind);

struct Stage {
  std::string name;
  TaskKind kind;
};

// Until `counter` has reached `threshold`; counter -1: nothing.
struct Wait {
  int32_t counter = -1, threshold = 0;
};

struct Task {
  int32_t stage, tile;
  Wait wait;
};

class Plan {
 public:
  int add_stage(std::string name, TaskKind kind);
  int add_counter(std::string name);
  void add_task(int stage, int tile, Wait wait, std::span<const int> bumps);
  void add_task(int stage, int tile, Wait wait, std::initializer_list<int> bumps) {
    add_task(stage, tile, wait, std::span(bumps.begin(), bumps.size()));
  }
  // Ends the building. Throws InternalError when tasks would wait for ever, and says which and for what.
  void close();

  const std::vector<Task>& tasks() const { return tasks_; }
  const std::vector<Stage>& stages() const { return stages_; }
  const std::vector<std::string>& counters() const { return counters_; }
  bool closed() const { return closed_; }

  // The counters that a task bumps; the tasks that wait for exactly `value` of a counter. Of a closed plan.
  struct Range {
    const int32_t *first, *last;
    const int32_t* begin() const { return first; }
    const int32_t* end() const { return last; }
  };
  Range bumps(int task) const { return {bumps_.data() + first_bump_[task], bumps_.data() + first_bump_[task + 1]}; }
  Range waiters(int counter, int value) const;

  // "activation 3 waits for up of tile 3: 0 of 1"
  std::string describe_wait(int task, int value) const;

 private:
  std::vector<Stage> stages_;
  std::vector<std::string> counters_;
  std::vector<Task> tasks_;
  std::vector<int32_t> bumps_, first_bump_ = {0};  // by task
  std::vector<int32_t> waiters_, first_waiter_;    // by counter, in order of the threshold, then of the task
  bool closed_ = false;
};

}  // namespace hyperparallel::runtime
