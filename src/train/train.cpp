// The `train` command: callbacks around the loop, resuming, signals.
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <nlohmann/json.hpp>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/trace.h"
#include "checkpoint/convert.h"
#include "runtime/run.h"
#include "train/batch_dump.h"
#include "train/evaluate.h"
#include "train/layout_plan.h"
#include "train/output_folder.h"
#include "train/progress.h"
#include "train/report.h"
#include "train/tensorboard.h"
#include "train/trace.h"
#include "train/trainer.h"
#include "train/training_state.h"

namespace hyperparallel::train {
namespace {

volatile std::sig_atomic_t received_signal = 0;

// SIGTERM, SIGINT and SIGUSR1 (which mpirun hands on to its ranks) while it lives: the first asks for a stop, a second one of the
// kind ends the process at once.
class SignalScope {
 public:
  SignalScope() {
    received_signal = 0;
    struct sigaction action = {};
    action.sa_handler = [](int signal) { received_signal = signal; };
    action.sa_flags = static_cast<int>(SA_RESETHAND);
    sigaction(SIGTERM, &action, &former_[0]);
    sigaction(SIGINT, &action, &former_[1]);
    action.sa_flags = 0;  // a launcher sends it until the ranks have ended
    sigaction(SIGUSR1, &action, &former_[2]);
  }
  ~SignalScope() {
    sigaction(SIGTERM, &former_[0], nullptr);
    sigaction(SIGINT, &former_[1], nullptr);
    sigaction(SIGUSR1, &former_[2], nullptr);
  }

 private:
  struct sigaction former_[3];
};

class StopCallback : public TrainerCallback {
 public:
  void on_train_begin(Trainer&) override { begin_ = monotonic_seconds(); }
  void on_step_end(Trainer& trainer, StepMetrics&) override {
    const double limit = trainer.config().train.max_seconds;
    if (received_signal != 0)  // the launcher hands SIGTERM and SIGINT on as SIGUSR1
      trainer.request_stop(received_signal == SIGUSR1 ? "the launcher was asked to" : strsignal(received_signal));
    if (limit > 0 && monotonic_seconds() - begin_ >= limit) trainer.request_stop(fmt::format("train.max_seconds = {}", limit));
  }

 private:
  double begin_ = 0;
};

class ValidationCallback : public TrainerCallback {
 public:
  void on_step_end(Trainer& trainer, StepMetrics& metrics) override {
    const int64_t interval = trainer.config().validation.interval;
    const bool is_last = metrics.step == trainer.config().train.steps;
    if (interval == 0 || trainer.config().data.validation.empty() || (metrics.step % interval != 0 && !is_last)) return;
    const double loss = trainer.validate();
    metrics.extra["validation_metrics/loss"] = loss;
    if (trainer.ranks().is_first()) log::info("step {}: validation loss {:.5f}", metrics.step, loss);
    Progress& progress = trainer.progress();
    if (std::isfinite(loss) && (progress.lowest_validation_loss == 0 || loss < progress.lowest_validation_loss)) {
      progress.lowest_validation_loss = loss;
      progress.is_lowest = true;
    }
  }
};

class CheckpointCallback : public TrainerCallback {
 public:
  explicit CheckpointCallback(checkpoint::CheckpointStore& store) : store_(store) {}

  void on_step_end(Trainer& trainer, StepMetrics& metrics) override {
    const int64_t interval = trainer.config().checkpoint.interval;
    if (interval > 0 && metrics.step % interval == 0) save(trainer, metrics);
    if (store_.last_save_seconds() != seconds_) metrics.extra["checkpoint/save(s)"] = seconds_ = store_.last_save_seconds();
  }

  void on_train_end(Trainer& trainer) override {
    store_.wait();
    if (trainer.progress().step != saved_ && trainer.progress().step > 0) store_.save(save_of(trainer));
  }

 private:
  void save(Trainer& trainer, StepMetrics& metrics) {
    const double begin = monotonic_seconds();
    trace::Scope scope("checkpoint", "checkpoint");
    if (trainer.config().checkpoint.async_mode) {
      store_.save_async(save_of(trainer));
    } else {
      store_.save(save_of(trainer));
    }
    saved_ = metrics.step;
    metrics.extra["checkpoint/stall(s)"] = monotonic_seconds() - begin;
  }

  checkpoint::CheckpointStore& store_;
  int64_t saved_ = 0;
  double seconds_ = 0;  // of the last save that was reported
};

// Answers to the first validation samples after each validation and at the end, for the report. Runs after the checkpoint.
class SamplesCallback : public TrainerCallback {
 public:
  void on_step_end(Trainer& trainer, StepMetrics& metrics) override {
    if (metrics.extra.contains("validation_metrics/loss")) answer(trainer);
  }
  void on_train_end(Trainer& trainer) override {
    if (trainer.finished() && answered_ != trainer.progress().step) answer(trainer);
  }

 private:
  void answer(Trainer& trainer) {
    trace::Scope scope("samples", "validation");
    const ValidationSection& validation = trainer.config().validation;
    EvaluateOptions options;
    options.split = "validation";
    options.limit = validation.generate_samples;
    options.max_new_tokens = validation.max_new_tokens;
    const auto answers = answer_split(trainer.config(), trainer.model(), trainer.tokenizer(), options, [](int64_t, int64_t) {});
    file::write(trainer.config().train.output / "samples.json", examples_of(answers).dump(1) + "\n");
    answered_ = trainer.progress().step;
  }

  int64_t answered_ = 0;  // the step whose model gave the answers
};

class TraceCallback : public TrainerCallback {
 public:
  TraceCallback(Trainer& trainer, const ProfileSection& profile)
      : window_(trainer.config().train.output / "traces", profile.start, profile.steps,
                profile.memory ? trainer.model().executor.get() : nullptr) {
    runtime::trace_tasks(profile.kernels);
  }
  void on_step_begin(Trainer&, int64_t step) override { window_.before_step(step); }
  void on_step_end(Trainer&, StepMetrics& metrics) override { window_.after_step(metrics.step); }

 private:
  TraceWindow window_;
};

class SinkCallback : public TrainerCallback {
 public:
  explicit SinkCallback(std::unique_ptr<MetricsSink> sink) : sink_(std::move(sink)) {}
  void on_step_end(Trainer&, StepMetrics& metrics) override { sink_->write(metrics); }

 private:
  std::unique_ptr<MetricsSink> sink_;
};

void add_callbacks(Trainer& trainer, checkpoint::CheckpointStore& store) {
  const Config& config = trainer.config();
  const std::filesystem::path& output = config.train.output;
  const int64_t done = trainer.progress().step;
  const auto sink = [&](std::unique_ptr<MetricsSink> sink) { trainer.add(std::make_unique<SinkCallback>(std::move(sink))); };
  if (config.debug.dump_batches > 0) trainer.add(std::make_unique<BatchDump>(output / "debug", config.debug.dump_batches));
  trainer.add(std::make_unique<StopCallback>());
  trainer.add(std::make_unique<ValidationCallback>());
  trainer.add(std::make_unique<CheckpointCallback>(store));
  if (!trainer.ranks().is_first()) return;  // what follows is written once
  if (config.validation.generate_samples > 0 && !config.data.validation.empty()) {
    const engine::ParameterStore& parameters = *trainer.model().parameters;
    const bool whole = std::ranges::all_of(parameters.specs(), [&](const engine::ParameterSpec& spec) {
      return parameters.placement(parameters.find(spec.name)).owned.size == spec.shape;
    });
    if (!config.model.architecture->can(models::Ability::kGeneration)) {
      log::info("validation.generate_samples is left out: model_type {} cannot generate yet",
                config.model.architecture->model_type());
    } else if (whole) {
      trainer.add(std::make_unique<SamplesCallback>());
    } else {
      log::warn(
          "validation.generate_samples needs the whole model on one rank and is left out; `hyperparallel eval` answers later");
    }
  }
  sink(std::make_unique<MetricsFile>(output / "metrics.jsonl", done));
  if (config.logging.tensorboard) sink(std::make_unique<TensorBoardFile>(output / "tb", done));
  sink(std::make_unique<ProgressLine>(stdout, config.logging.interval, config.train.steps));
  // Last, so that it records what the others do after a step.
  if (config.profile.steps > 0) trainer.add(std::make_unique<TraceCallback>(trainer, config.profile));
}

// Where checkpoint.export_hf puts the model. A longer run makes another folder.
std::filesystem::path export_folder(const Config& config, int64_t step) {
  return config.train.output / "hf" / fmt::format("step-{:08}", step);
}

// Before anything is trained or removed.
void refuse_existing_export(const Config& config) {
  const std::filesystem::path folder = export_folder(config, config.train.steps);
  if (config.checkpoint.export_hf && std::filesystem::exists(folder)) {
    throw ConfigError("checkpoint.export_hf: {} exists already, and an export makes a new folder: remove or move it",
                      folder.string());
  }
}

// A finished run's last checkpoint as a Hugging Face folder, in the type that was computed in.
void export_last(const Config& config, const checkpoint::CheckpointStore& store, int64_t step) {
  const std::filesystem::path folder = export_folder(config, step);
  if (!config.checkpoint.export_hf || std::filesystem::exists(folder)) return;
  checkpoint::ExportOptions options;
  options.type = config.train.dtype == Dtype::kBFloat16 ? at::kBFloat16 : at::kFloat;
  file::create_folders(folder.parent_path());
  checkpoint::export_checkpoint(store.open(step), folder, options);
  log::info("exported the model to {}", folder.string());
}

// The checkpoint to continue from; one rank looks, all open the same.
std::optional<checkpoint::Checkpoint> open_latest(const Config& config, const checkpoint::CheckpointStore& store,
                                                  const Ranks& ranks) {
  std::optional<checkpoint::Checkpoint> found;
  if (ranks.is_first()) {
    found = config.checkpoint.load_step >= 0 ? std::optional(store.open(config.checkpoint.load_step))
                                             : store.open_verified(config.checkpoint.fall_back);
  }
  const int64_t step = ranks.sum(found ? found->step() : ranks.is_first() ? -1 : 0, "world", "latest checkpoint");
  if (step < 0 || ranks.is_first()) return found;
  return store.open(step);
}

// What the plan says of a rank's memory, before the first step takes it.
void tell_memory(const Config& config, const Ranks& ranks) {
  const int world = ranks.layout.mesh.world_size(), here = ranks.world != nullptr ? ranks.world->local_size() : 1;
  const auto peak = static_cast<double>(plan_of(config, world).step.at_peak.total());
  const auto machine = static_cast<double>(memory_use().machine_bytes);
  if (here * peak > machine) {
    log::warn(
        "a step of text needs about {:.1f} GB on each of the {} ranks here, and this host has {:.1f} GB: see docs/memory.md",
        peak / 1e9, here, machine / 1e9);
  } else {
    log::info("a step of text needs about {:.2f} GB of tensors a rank", peak / 1e9);
  }
}

void write_beginning(const Config& config, Trainer& trainer) {
  const std::filesystem::path& output = config.train.output;
  file::write(output / "config.yaml", to_yaml(config, /*with_sources=*/true));
  const std::string parameters = std::to_string(trainer.model().parameter_count());
  const int ranks = trainer.ranks().layout.mesh.world_size();
  log::info("{} parameters{}, {} training samples, {} steps to {}", parameters,
            ranks == 1 ? "" : fmt::format(" on {} ranks", ranks), trainer.loader().samples(), config.train.steps,
            output.string());
  tell_memory(config, trainer.ranks());
  write_run_facts(output, {{"parameters", parameters},
                           {"ranks", std::to_string(ranks)},
                           {"training samples", std::to_string(trainer.loader().samples())},
                           {"steps", std::to_string(config.train.steps)}});
}

}  // namespace

int train(const Config& config, dist::World* world) {
  SignalScope signals;
  const std::filesystem::path& output = config.train.output;
  Trainer trainer(config, world);
  const Ranks& ranks = trainer.ranks();
  const bool first = ranks.is_first();
  std::optional<OutputLock> lock;
  if (first) lock.emplace(output);
  if (config.train.restart) {
    refuse_existing_export(config);
    if (first) set_aside(output);  // until the new run has a checkpoint
  }
  ranks.group("world").barrier("output folder");
  const auto saving = ranks.checkpoint_group();
  checkpoint::CheckpointStore store(output / "checkpoints", {.keep_latest_k = config.checkpoint.keep_latest_k,
                                                             .rank = ranks.layout.rank,
                                                             .world = ranks.layout.mesh.world_size(),
                                                             .barrier = [&] { saving->barrier("checkpoint"); }});
  if (const auto latest = open_latest(config, store, ranks)) {
    restore(trainer, *latest);
    if (first && is_imported(*latest)) {
      log::info("starting from the imported weights in {}", latest->folder().string());
    } else if (first) {
      log::info("continuing {} after step {} ({})", output.string(), trainer.progress().step,
                latest->folder().filename().string());
      for (const std::string& change : changed_settings(*latest, config)) log::warn("continuing with {}", change);
    }
  } else if (!config.model.weights.empty()) {
    const int64_t fresh = load_parameters(*trainer.model().parameters, checkpoint::HfFolder(config.model.weights));
    note_fresh(trainer, fresh, config.model.weights);
    if (first) log::info("starting from the weights of {}", config.model.weights.string());
  }
  if (first && trainer.progress().step == 0 && !config.train.restart) {
    for (const std::filesystem::path& folder : runs_set_aside(output))
      log::warn("{} holds a run that an earlier --train.restart put aside; it stays there until this one has ended",
                folder.string());
  }
  if (first) write_beginning(config, trainer);
  if (const auto schedule = config.schedules()[0]; first && schedule.warmup_steps > schedule.total_steps) {
    log::warn("optimizer.schedule.warmup_steps {} are more than the {} steps: the learning rate never reaches optimizer.lr",
              schedule.warmup_steps, schedule.total_steps);
  }
  if (trainer.finished()) {
    if (first) {
      log::info("{} has all {} steps already; --train.restart begins anew, a larger train.steps goes on", output.string(),
                config.train.steps);
      export_last(config, store, trainer.progress().step);
    }
    return static_cast<int>(ExitCode::kFinished);
  }
  refuse_existing_export(config);
  add_callbacks(trainer, store);
  trainer.set_peak_gflops(ranks.sum(measure_peak_gflops(), "world", "peak"));
  trainer.run();
  if (first) {
    if (trainer.progress().step > 0) forget_set_aside(output);  // a checkpoint was saved at the end
    if (trainer.finished()) export_last(config, store, trainer.progress().step);
    const std::filesystem::path page = write_report(output);
    log::info("report: {}", page.string());
  }
  if (trainer.finished()) return static_cast<int>(ExitCode::kFinished);
  if (first) log::warn("stopped after step {} ({}); the same command continues", trainer.progress().step, trainer.stop_reason());
  return static_cast<int>(ExitCode::kStopped);
}

}  // namespace hyperparallel::train
