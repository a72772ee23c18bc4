// The executor carries out a schedule: it runs segments on detached inputs, hands values on through the ledger, and derives.
//
// NOTE [Backward of a segment]: gradients of all declared outputs, zeros where nobody asked, are handed to autograd for the
// segment's own graph; so every transpose runs on every rank. Gradients of a value sum in FP32 in reverse program order.
// NOTE [Counters]: what a segment counts is counted on its first forward only, never when it is recomputed.
#pragma once

#include "base/aten.h"

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "dist/mesh.h"
#include "engine/ledger.h"
#include "engine/offload.h"
#include "engine/program.h"
#include "engine/schedule.h"
#include "engine/unit_exchange.h"
#include "engine/wait_clock.h"
#include "engine/weight.h"

namespace hyperparallel::engine {

class Executor;

// What a segment's code sees.
class SegmentRun {
 public:
  // An input. Differentiable ones are detached leaves of this segment's graph.
  const at::Tensor& read(ValueId value) const;
  // Hands out an output. Shapes must fit the declared symbols; a discrete output must not require grad.
  void make(ValueId value, at::Tensor tensor);
  // A discrete output that is chosen once: the first forward calls `choose`, a recompute gets the recorded tensor. It is made as
  // well.
  at::Tensor choose(ValueId value, const std::function<at::Tensor()>& choose);

  Weight weight(ParameterId parameter);         // of use kWeight or kTable
  at::Tensor parameter(ParameterId parameter);  // of use kLeaf or kState

  at::ScalarType compute_type() const;  // of values
  // FP64 for an FP64 run, else FP32: the type of tables, coefficients and sums.
  at::ScalarType math_type() const;

  // The ranks of a mesh axis, for the few segments that communicate inside by declaration: every rank runs them alike.
  dist::Group& group(const std::string& axis);
  WaitClock& wait_clock();

  // Adds to the step's counter of that name, on the first forward only.
  void count(const std::string& name, const at::Tensor& counts);
  // Shows an intermediate that is no value, when somebody watches; `rows` is the symbol of its first dimension. `compute` may
  // take a plain path that training never does; it may communicate: either all ranks watch or none.
  void observe(const std::string& name, const std::string& rows, const std::function<at::Tensor()>& compute);

 private:
  friend class Executor;
  SegmentRun(Executor& executor, const Segment& segment, int micro_batch, bool with_graph, bool is_recompute);

  Executor& executor_;
  const Segment& segment_;
  const int micro_batch_;
  const bool with_graph_, is_recompute_;
  at::Tensor anchor_;
  std::map<int32_t, at::Tensor> inputs_, outputs_;          // by value; outputs still attached to the graph
  std::vector<std::pair<ParameterId, at::Tensor>> leaves_;  // small parameters used as plain leaves
};

using ValueMap = std::map<int32_t, at::Tensor>;  // by value index

// Is told what an executor does, for checks and measurements: engine/ledger_check.h, engine/memory_profile.h.
class ActionObserver {
 public:
  virtual ~ActionObserver() = default;
  virtual void on_run_begin(const Executor&) {}  // the inputs are in the ledger
  virtual void on_action_begin(const Executor&, const Action&) {}
  virtual void on_action_end(const Executor&, const Action&) {}
};

class Executor {
 public:
  // Both must outlive the executor. `groups` gives the group of every mesh axis.
  Executor(const Program& program, ParameterStore& parameters, dist::Groups groups = dist::one_rank_groups());
  ~Executor();

  // Runs the schedule. `inputs[m]` holds every program input of micro-batch m; `seeds[m]` the coefficient of every loss of the
  // program, in order, which may be empty for a forward-only schedule. Throws InternalError when a segment breaks its
  // declaration.
  void run(const std::vector<Action>& schedule, const std::vector<ValueMap>& inputs,
           const std::vector<std::vector<double>>& seeds);

  // Loss values of the last run, FP64, [micro-batches][losses].
  const std::vector<std::vector<double>>& losses() const { return losses_; }
  // The program's outputs of the last run, [micro-batches].
  const std::vector<ValueMap>& outputs() const { return outputs_; }
  // Counters since the last `clear_counters`.
  const std::map<std::string, at::Tensor>& counters() const { return counters_; }
  void clear_counters() { counters_.clear(); }
  // Gradients of program inputs that wanted one, of the last micro-batch.
  const ValueMap& input_gradients() const { return input_gradients_; }

  // Where schedules with offloading keep values: a file without a name in this folder. Throws file::FileError.
  void offload_to(const std::filesystem::path& folder) { offload_ = std::make_unique<Offload>(folder); }
  const Offload* offload() const { return offload_.get(); }  // nullptr: nowhere

  // Counts how long runs wait for other ranks: values, parameters and gradients.
  WaitClock& wait_clock() { return wait_clock_; }

  // Calls `watch(name, rows, tensor)` for every value that is made and everything segments show, on first forwards; `rows` is the
  // symbol of the first dimension, empty where it has none. All ranks watch, or none.
  using Watch = std::function<void(const std::string& name, const std::string& rows, const at::Tensor&)>;
  void watch(Watch watch) { watch_ = std::move(watch); }

  // Observers must outlive the executor or be removed. One that throws ends the run.
  void add_observer(ActionObserver& observer) { observers_.push_back(&observer); }
  void remove_observer(ActionObserver& observer) { std::erase(observers_, &observer); }

  const Program& program() const { return program_; }
  // Whether something is on its way: to other ranks or to the file.
  bool exchanging() const {
    return !pending_.empty() || !pending_transpose_.empty() || units_.busy() || (offload_ && offload_->busy());
  }
  dist::Group& group(const std::string& axis) const { return *groups_.at(axis); }
  const Ledger& ledger() const { return ledger_; }
  ParameterStore& parameters() { return parameters_; }
  const ParameterStore& parameters() const { return parameters_; }

 private:
  friend class SegmentRun;
  void take_inputs(const std::vector<ValueMap>& inputs);
  void run_action(const Action& action, const std::vector<std::vector<double>>& seeds);
  void forward(const Action& action, bool is_recompute);
  void backward(const Action& action, const std::vector<std::vector<double>>& seeds_of);
  void move(const Action& action);  // to and from the offload's file
  void launch(const Action& action);
  void wait(const Action& action);
  void launch_transpose(const Action& action);
  void wait_transpose(const Action& action);
  std::vector<int64_t> row_counts(const RowCounts& counts, int micro_batch) const;
  void put_value(ValueId value, int micro_batch, at::Tensor tensor);
  void show(ValueId value, const at::Tensor& tensor) const;  // to the watcher
  void check_shape(ValueId value, int micro_batch, const at::Tensor& tensor);
  void check_versions(const SegmentRun& run, const std::vector<uint32_t>& versions) const;

  const Program& program_;
  ParameterStore& parameters_;
  dist::Groups groups_;
  WaitClock wait_clock_;
  UnitExchange units_;
  Ledger ledger_;
  std::unique_ptr<Offload> offload_;
  std::map<std::pair<int, int>, std::unique_ptr<SegmentRun>> graphs_;  // (segment, micro-batch) that waits for its backward
  std::map<std::pair<int, int>, dist::Pending> pending_, pending_transpose_;  // (exchange, micro-batch)
  std::map<std::pair<int, int>, at::Tensor> result_like_;                     // likewise: shape and type of the output, no memory
  std::map<std::pair<std::string, int>, int64_t> symbols_;                    // (symbol, micro-batch) -> size
  std::vector<std::vector<double>> losses_;
  std::vector<ValueMap> outputs_;
  std::map<std::string, at::Tensor> counters_;
  ValueMap input_gradients_;
  Watch watch_;
  std::vector<ActionObserver*> observers_;
};

}  // namespace hyperparallel::engine
