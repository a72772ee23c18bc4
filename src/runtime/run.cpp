#include "runtime/run.h"

#include <ATen/Parallel.h>
#include <sched.h>
#include <time.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include <atomic>
#include <bit>
#include <exception>
#include <mutex>
#include <optional>
#include <thread>

#include "base/clock.h"
#include "base/error.h"
#include "base/trace.h"
#include "runtime/plan_cache.h"

namespace hyperparallel::runtime {
namespace {

// A set of numbers from which many threads take the smallest. A bit of `summary_` stands for a word that may have bits.
class ReadySet {
 public:
  explicit ReadySet(size_t size) : words_((size + 63) / 64), summary_((words_.size() + 63) / 64) {}

  void add(int32_t number) {
    const size_t word = number / 64;
    words_[word].fetch_or(bit(number), std::memory_order_release);
    summary_[word / 64].fetch_or(bit(word), std::memory_order_release);
  }

  int32_t take() {  // -1: nothing is there
    for (size_t group = 0; group < summary_.size(); ++group) {
      while (const uint64_t words = summary_[group].load(std::memory_order_acquire)) {
        const size_t word = group * 64 + std::countr_zero(words);
        const uint64_t numbers = words_[word].load(std::memory_order_acquire);
        if (numbers == 0) {
          summary_[group].fetch_and(~bit(word), std::memory_order_acq_rel);
          // Something may have been added between the two.
          if (words_[word].load(std::memory_order_acquire) != 0) summary_[group].fetch_or(bit(word), std::memory_order_release);
          continue;
        }
        const uint64_t lowest = numbers & -numbers;
        if (words_[word].fetch_and(~lowest, std::memory_order_acq_rel) & lowest)
          return static_cast<int32_t>(word * 64 + std::countr_zero(lowest));
      }
    }
    return -1;
  }

 private:
  static uint64_t bit(uint64_t number) { return uint64_t{1} << (number % 64); }
  std::vector<std::atomic<uint64_t>> words_, summary_;
};

// Numbers below the smallest normal one count as zero on this thread, while it is: many processors take a hundred times as long
// for them, and gradients that fade through iterations are full of them.
class NoDenormals {
 public:
#if defined(__x86_64__)
  NoDenormals() { _mm_setcsr(before_ | kFlushResults | kFlushInputs); }
  ~NoDenormals() { _mm_setcsr(before_); }

 private:
  static constexpr unsigned kFlushResults = 0x8000, kFlushInputs = 0x0040;
  const unsigned before_ = _mm_getcsr();
#endif
};

std::atomic<bool> tasks_are_shown{false};

bool traces() {
  return trace::enabled() && tasks_are_shown.load(std::memory_order_relaxed);
}

class Run {
 public:
  Run(const Plan& plan, const Body& body, const Poll& poll)
      : plan_(plan),
        body_(body),
        poll_(poll),
        counters_(plan.counters().size()),
        ready_(plan.tasks().size()),
        left_(plan.tasks().size()) {
    for (size_t task = 0; task < plan.tasks().size(); ++task) {
      if (plan.tasks()[task].wait.counter < 0) ready_.add(static_cast<int32_t>(task));
    }
  }

  void work(int worker) {
    const NoDenormals no_denormals;
    Idleness idle(*this, worker);
    try {
      while (left_.load(std::memory_order_acquire) > 0 && !failed_.load(std::memory_order_relaxed)) {
        if (under_way_.load(std::memory_order_relaxed) > 0) ask();
        const int32_t task = ready_.take();
        if (task < 0) {
          idle.wait();
          continue;
        }
        idle.end();
        if (is_communication(task)) {
          begin(task);
        } else {
          carry_out(plan_.tasks()[task], worker);
          finish(task);
        }
      }
    } catch (...) {
      std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
      failed_ = true;
    }
  }

  double waited() const { return waited_; }  // by worker 0

  void rethrow() const {
    if (failure_) std::rethrow_exception(failure_);
  }

 private:
  // The time between two tasks of a worker.
  class Idleness {
   public:
    Idleness(Run& run, int worker) : run_(run), worker_(worker) {}
    ~Idleness() { end(); }

    // Cores may be fewer than threads, so nobody spins for long.
    void wait() {
      constexpr int kSpins = 256, kYields = 4096;
      constexpr timespec kNap{.tv_sec = 0, .tv_nsec = 50'000};
      const bool communicates = run_.under_way_.load(std::memory_order_relaxed) > 0;
      if (communicates && since_ < 0) begin();
      if (rounds_ < kSpins) {
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
      } else if (communicates && rounds_ > kYields) {
        nanosleep(&kNap, nullptr);
      } else {
        sched_yield();
      }
      ++rounds_;
    }
    void end() {
      rounds_ = 0;
      span_.reset();
      if (since_ >= 0 && worker_ == 0) run_.waited_ += monotonic_seconds() - since_;
      since_ = -1;
    }

   private:
    void begin() {
      since_ = monotonic_seconds();
      if (traces()) span_.emplace(run_.first_under_way(), to_string(TaskKind::kCommunication));
    }
    Run& run_;
    int worker_, rounds_ = 0;
    double since_ = -1;  // seconds; -1: no communication is under way
    std::optional<trace::Scope> span_;
  };

  bool is_communication(int32_t task) const { return plan_.stages()[plan_.tasks()[task].stage].kind == TaskKind::kCommunication; }

  void begin(int32_t task) {
    std::lock_guard lock(polling_);
    if (is_done(task)) return finish(task);
    travelling_.push_back(task);
    ++under_way_;
  }
  // Asks for all that is under way, unless somebody else does.
  void ask() {
    std::unique_lock lock(polling_, std::try_to_lock);
    if (!lock) return;
    std::erase_if(travelling_, [&](int32_t task) {
      if (!is_done(task)) return false;
      finish(task);
      --under_way_;
      return true;
    });
  }
  bool is_done(int32_t task) const { return poll_(plan_.tasks()[task].stage, plan_.tasks()[task].tile); }
  std::string first_under_way() {
    std::lock_guard lock(polling_);
    if (travelling_.empty()) return "";
    const Task& task = plan_.tasks()[travelling_.front()];
    return "wait for " + plan_.stages()[task.stage].name + " " + std::to_string(task.tile);
  }

  void carry_out(const Task& task, int worker) const {
    if (!traces()) return body_(task.stage, task.tile, worker);
    const Stage& stage = plan_.stages()[task.stage];
    const trace::Scope scope(stage.name + " " + std::to_string(task.tile), to_string(stage.kind));
    body_(task.stage, task.tile, worker);
  }

  void finish(int32_t task) {
    for (int counter : plan_.bumps(task)) {
      const int value = counters_[counter].fetch_add(1, std::memory_order_acq_rel) + 1;
      for (int32_t woken : plan_.waiters(counter, value)) ready_.add(woken);
    }
    left_.fetch_sub(1, std::memory_order_acq_rel);
  }

  const Plan& plan_;
  const Body& body_;
  const Poll& poll_;
  std::vector<std::atomic<int32_t>> counters_;
  ReadySet ready_;
  std::atomic<int64_t> left_;
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  std::exception_ptr failure_;
  std::mutex polling_;
  std::vector<int32_t> travelling_;  // communication tasks that are under way
  std::atomic<int> under_way_{0};    // how many
  double waited_ = 0;
};

}  // namespace

int workers() {
  return at::in_parallel_region() ? 1 : at::get_num_threads();
}

void trace_tasks(bool shown) {
  tasks_are_shown = shown;
}

double run(const Plan& plan, const Body& body, const Poll& poll) {
  HP_CHECK(plan.closed(), "a plan that is not closed is run");
  for (const Stage& stage : plan.stages())
    HP_CHECK(stage.kind != TaskKind::kCommunication || poll, "stage {} communicates, and nobody polls it", stage.name);
  if (plan.tasks().empty()) return 0;
  std::optional<trace::Scope> scope;
  if (traces()) scope.emplace(plan.stages().front().name, "plan");
  Run run(plan, body, poll);
#if defined(__SANITIZE_THREAD__)  // which does not see how libgomp's threads begin and end a region
  std::vector<std::thread> threads;
  for (int worker = 0; worker < workers(); ++worker) threads.emplace_back([&run, worker] { run.work(worker); });
  for (std::thread& thread : threads) thread.join();
#else
  at::parallel_for(0, workers(), 1, [&](int64_t worker, int64_t) { run.work(static_cast<int>(worker)); });
#endif
  run.rethrow();
  return run.waited();
}

void run_independent(const char* name, int64_t tasks, const std::function<void(int64_t task, int worker)>& body) {
  static PlanCache<std::pair<std::string, int64_t>> plans;
  const auto plan = plans.get({name, tasks}, [&](Plan& made) {
    const int stage = made.add_stage(name, TaskKind::kVector);
    for (int64_t i = 0; i < tasks; ++i) made.add_task(stage, static_cast<int>(i), {}, {});
  });
  run(*plan, [&](int, int task, int worker) { body(task, worker); });
}

}  // namespace hyperparallel::runtime
