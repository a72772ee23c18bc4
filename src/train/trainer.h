// The training loop: batches to updates, with everything around a step hung on as callbacks.
//
// One step (design of the training step): all micro-batches of the step are fetched, so that the loss is divided by the
// supervised tokens of the whole step (NOTE [Loss normalisation]); forward and backward of each; global norm, clip, AdamW; router
// biases; schedule.
#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "data/loader.h"
#include "data/tokenizer.h"
#include "engine/contract_check.h"
#include "engine/ledger_check.h"
#include "engine/segment_clock.h"
#include "optim/clip.h"
#include "optim/mix.h"
#include "train/config.h"
#include "train/metrics.h"
#include "train/run_model.h"
#include "train/state_prefetch.h"
#include "train/table_prefetch.h"

namespace hyperparallel::train {

class Trainer;

// What hangs on the loop. Called in the order they were added; what one throws ends the run.
class TrainerCallback {
 public:
  virtual ~TrainerCallback() = default;
  virtual void on_train_begin(Trainer&) {}
  virtual void on_step_begin(Trainer&, int64_t /*step*/) {}
  // The micro-batches that the step is about to train on.
  virtual void on_batches(Trainer&, int64_t /*step*/, const std::vector<data::MicroBatch>&) {}
  // Gradients are whole and not yet clipped (of refused steps, too).
  virtual void on_gradients(Trainer&, int64_t /*step*/) {}
  // After the update. May add to `metrics.extra`; sinks come last.
  virtual void on_step_end(Trainer&, StepMetrics& /*metrics*/) {}
  virtual void on_train_end(Trainer&) {}
};

// Where a run stands between two steps; saved with every checkpoint.
struct Progress {
  int64_t step = 0;    // finished
  int64_t tokens = 0;  // seen, padding left out
  int64_t skipped_steps = 0;
  double lowest_validation_loss = 0;  // 0: none yet
  bool is_lowest = false;             // the last validation was the lowest, and no step came after it
};

class Trainer {
 public:
  // Builds model, optimizer and loaders of this rank; nothing is written. `world`, which must outlive the trainer: all ranks of
  // the run, each of which makes its trainer; nullptr: this process alone. Throws ConfigError and DataError.
  explicit Trainer(const Config& config, dist::World* world = nullptr);
  ~Trainer();

  void add(std::unique_ptr<TrainerCallback> callback) { callbacks_.push_back(std::move(callback)); }

  // What `mfu` of the metrics is a share of (measure_peak_gflops()); until it is set, `mfu` is NaN.
  void set_peak_gflops(double peak_gflops) { peak_gflops_ = peak_gflops; }

  // Runs to `train.steps`, or until a stop is asked for. Throws NonFiniteError after too many refused steps.
  void run();
  // Asks for the end after the present step; `reason` is logged. Safe from callbacks.
  void request_stop(const std::string& reason) { stop_reason_ = reason; }
  bool finished() const { return progress_.step >= config_.train.steps; }
  const std::string& stop_reason() const { return stop_reason_; }

  // Mean loss over the validation files (at most validation.steps global batches, from the first sample on); NaN where there are
  // none.
  double validate();

  const Config& config() const { return config_; }
  const Ranks& ranks() const { return ranks_; }
  RunModel& model() { return *model_; }
  const RunModel& model() const { return *model_; }
  const data::Tokenizer& tokenizer() const { return tokenizer_; }
  data::Loader& loader() { return *loader_; }
  optim::Optimizer& optimizer() { return *optimizer_; }
  Progress& progress() { return progress_; }
  // Router loads of the last step on all ranks, by counter ("layers.3.loads"): int64 [2, experts], text and image.
  const std::map<std::string, at::Tensor>& router_loads() const { return loads_; }

 private:
  struct StepBatches;
  StepBatches fetch(int64_t step);
  void forward_backward(StepMetrics& metrics, const StepBatches& batches);
  void sum_losses(StepMetrics& metrics, const StepBatches& batches) const;
  bool has_finite_losses() const;
  bool update(StepMetrics& metrics, const StepBatches& batches);
  void refuse(const std::string& what, const StepBatches& batches);
  optim::GradientNorm global_norm(std::span<const optim::OptimizedParameter> parameters) const;
  std::string agreed_fault(const std::string& fault) const;
  void sum_loads();
  void set_up_offload();
  std::vector<optim::OptimizedParameter> optimized_parameters() const;
  void step();
  void add_totals(StepMetrics& metrics) const;

  Config config_;
  Ranks ranks_;
  data::Tokenizer tokenizer_;
  std::unique_ptr<RunModel> model_;
  std::unique_ptr<optim::MixedOptimizer> optimizer_;
  std::unique_ptr<TablePrefetch> table_prefetch_;             // where tables lie in files
  std::unique_ptr<StatePrefetch> state_prefetch_;             // where optimizer state does
  std::vector<engine::ParameterId> trained_;                  // the optimizer's parameters, in its order
  std::map<std::string, at::Tensor> loads_;                   // router loads of the step, of all ranks
  std::unique_ptr<data::Loader> loader_, validation_loader_;  // the latter only where there are validation files
  // Of a step with so many rows over all ranks.
  struct StepSchedule {
    std::vector<engine::Action> actions;
    int64_t micro_batches = 1;  // of a rank
  };
  const StepSchedule& step_schedule(int64_t step) const { return schedules_.at(config_.batch_size(step)); }
  std::map<int64_t, StepSchedule> schedules_;  // by rows
  std::vector<engine::Action> validation_schedule_;
  std::vector<std::unique_ptr<TrainerCallback>> callbacks_;
  Progress progress_;
  std::string stop_reason_;
  int64_t consecutive_skips_ = 0;
  double peak_gflops_ = std::numeric_limits<double>::quiet_NaN();
  engine::LedgerCheck ledger_check_;
  engine::ContractCheck contract_check_;
  std::map<std::string, std::unique_ptr<engine::SegmentClock>> clocks_;  // by metric, of segments that the model names
};

// The whole `train` command: resumes what the output folder holds, trains, and returns the exit code (0 finished, 16 stopped on
// request with a checkpoint). SIGTERM and SIGINT, to any rank, end the run after the present step. Every rank of `world` calls
// it.
int train(const Config& config, dist::World* world = nullptr);

}  // namespace hyperparallel::train
