#include "train/trainer.h"

#include <cmath>

#include "base/clock.h"
#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "base/trace.h"
#include "engine/memory.h"
#include "optim/clip.h"
#include "train/layout_plan.h"
#include "train/router_balance.h"
#include "train/update_rules.h"

namespace hyperparallel::train {
// The micro-batches of one step.
struct Trainer::StepBatches {
  std::vector<data::MicroBatch> batches;
  int64_t tokens = 0, supervised = 0, sequences = 0;
  double model_units = 0;
  double seconds = 0;  // waiting for data

  double count(engine::Loss::Per per) const {
    using Per = engine::Loss::Per;
    if (per == Per::kModelUnits) return std::max(1.0, model_units);
    const int64_t found = per == Per::kSupervisedTokens ? supervised : per == Per::kTokens ? tokens : sequences;
    return static_cast<double>(std::max<int64_t>(1, found));
  }
};

Trainer::Trainer(const Config& config, dist::World* world)
    : config_(config), ranks_(make_ranks(config, world)), tokenizer_(data::Tokenizer::load(config.data.tokenizer.string())) {
  set_up_libtorch(config.train, world);
  model_ = build_run_model(config, tokenizer_, ranks_);
  model_->parameters->initialise(static_cast<uint64_t>(config.train.seed));
  loader_ = std::make_unique<data::Loader>(tokenizer_, loader_options(config, config.data.train, /*repeat=*/true, ranks_));
  if (!config.data.validation.empty()) {
    validation_loader_ =
        std::make_unique<data::Loader>(tokenizer_, loader_options(config, config.data.validation, /*repeat=*/false, ranks_));
  }
  std::vector<int64_t> sizes{config.train.global_batch_size};
  for (const BatchStage& stage : config.train.batch_ramp) sizes.push_back(stage.global_batch_size);
  for (int64_t rows : sizes) {
    const engine::ScheduleOptions options = schedule_options(config, ranks_.layout, rows);
    schedules_[rows] = {make_schedule(model_->program(), options), options.micro_batches};
  }
  engine::ScheduleOptions schedule = schedule_options(config, ranks_.layout);
  schedule.backward = false;
  schedule.micro_batches = 1;
  validation_schedule_ = make_schedule(model_->program(), schedule);

  if (config.optimizer.state_storage == StateStorage::kMmap) file::create_folders(rule_settings(config).state_folder);
  const std::vector<engine::ParameterSpec> optimized = optimized_specs(model_->parameters->specs());
  for (const engine::ParameterSpec& spec : optimized) trained_.push_back(model_->parameters->find(spec.name));
  optimizer_ = std::make_unique<optim::MixedOptimizer>(optimized_parameters(), optimized,
                                                       parameter_settings(config, model_->parameters->specs()),
                                                       rule_settings(config), ranks_.layout, ranks_.groups.at("world"));
  if (config.model.switches.engram_storage == EngramStorage::kMmap)
    table_prefetch_ = std::make_unique<TablePrefetch>(*model_, optimizer_->state(), ranks_.group("stage"));
  if (config.optimizer.state_storage == StateStorage::kMmap) {
    state_prefetch_ = std::make_unique<StatePrefetch>(model_->program(), *optimizer_);
    model_->executor->add_observer(*state_prefetch_);
  }
  for (const auto& [metric, segments] : model_->model->timed_segments()) {
    clocks_[metric] = std::make_unique<engine::SegmentClock>(model_->program(), segments);
    model_->executor->add_observer(*clocks_[metric]);
  }
  if (config.debug.check_ledger) model_->executor->add_observer(ledger_check_);
  if (config.debug.check_contracts) model_->executor->add_observer(contract_check_);
}

Trainer::~Trainer() = default;

void Trainer::set_up_offload() {
  if (config_.recompute.offload.empty()) return;
  const int64_t values =
      std::ranges::count(step_schedule(config_.train.steps).actions, engine::ActionKind::kLaunchOffload, &engine::Action::kind);
  log::info("recompute.offload: {} values of a step rest in a file", values);
  if (values == 0) log::warn("recompute.offload: nothing that matches is held long enough between its uses to be worth it");
  const Path& folder = config_.recompute.offload_folder.empty() ? config_.train.output : config_.recompute.offload_folder;
  file::create_folders(folder);
  if (values > 0) model_->executor->offload_to(folder);
}

std::vector<optim::OptimizedParameter> Trainer::optimized_parameters() const {
  std::vector<optim::OptimizedParameter> parameters;
  for (engine::ParameterId id : trained_) {
    engine::ParameterStore& store = *model_->parameters;
    if (store.is_table(id)) {
      const engine::RowGradients& gradients = store.row_gradients(id);
      parameters.push_back({store.spec(id).name, {}, gradients.values, &store.table(id), gradients.rows});
    } else {
      parameters.push_back({store.spec(id).name, store.master(id), store.gradient(id)});
    }
  }
  return parameters;
}

void Trainer::run() {
  set_up_offload();
  for (auto& callback : callbacks_) callback->on_train_begin(*this);
  while (!finished() && stop_reason_.empty()) {
    step();
    const int64_t stopping = ranks_.sum(int64_t{stop_reason_.empty() ? 0 : 1}, "world", "stop");  // all stop, or none
    if (stopping > 0 && stop_reason_.empty()) stop_reason_ = "another rank asked for it";
  }
  for (auto& callback : callbacks_) callback->on_train_end(*this);
}

Trainer::StepBatches Trainer::fetch(int64_t step) {
  trace::Scope scope("wait for data", "data");
  StepBatches result;
  const double begin = monotonic_seconds();
  loader_->set_seq_len(config_.seq_len(step));
  for (int64_t i = 0; i < step_schedule(step).micro_batches; ++i) {
    result.batches.push_back(loader_->next().value());
    const data::MicroBatch& batch = result.batches.back();
    result.supervised += batch.supervised_tokens;
    result.model_units += model_->model->loss_units(batch);
    for (uint8_t padding : batch.padding) result.tokens += padding == 0 ? 1 : 0;
    for (size_t d = 0; d + 1 < batch.cu_seqlens.size(); ++d) {
      const auto first = batch.padding.begin() + batch.cu_seqlens[d], last = batch.padding.begin() + batch.cu_seqlens[d + 1];
      result.sequences += std::find(first, last, 0) != last ? 1 : 0;
    }
  }
  result.seconds = monotonic_seconds() - begin;
  result.tokens = ranks_.sum(result.tokens, "dp", "step.tokens");
  result.supervised = ranks_.sum(result.supervised, "dp", "step.supervised");
  result.sequences = ranks_.sum(result.sequences, "dp", "step.sequences");
  result.model_units = ranks_.sum(result.model_units, "dp", "step.model_units");
  return result;
}

// NOTE [Loss normalisation]: every micro-batch is seeded with 1 / (supervised tokens of the whole step on all ranks), other
// losses with their weight / (what they count, likewise), so that neither the number of micro-batches nor their sizes nor the
// layout change a loss or any gradient.
void Trainer::forward_backward(StepMetrics& metrics, const StepBatches& batches) {
  std::vector<engine::ValueMap> inputs;
  for (const data::MicroBatch& batch : batches.batches) inputs.push_back(model_->inputs(batch));
  metrics.extra.merge(model_->model->metrics(inputs));
  if (table_prefetch_) table_prefetch_->begin(inputs);
  if (state_prefetch_) state_prefetch_->begin(static_cast<int64_t>(inputs.size()));
  std::vector<double> seeds;
  for (const engine::Loss& loss : model_->program().losses) seeds.push_back(loss.weight / batches.count(loss.per));
  model_->executor->run(step_schedule(metrics.step).actions, inputs, std::vector<std::vector<double>>(inputs.size(), seeds));
}

// Means over the step and all ranks, before their weights.
void Trainer::sum_losses(StepMetrics& metrics, const StepBatches& batches) const {
  const std::vector<engine::Loss>& losses = model_->program().losses;
  for (size_t i = 0; i < losses.size(); ++i) {
    double own = 0;
    for (const std::vector<double>& values : model_->executor->losses()) own += values[i];
    const double mean = ranks_.sum(own, "fsdp", "loss." + losses[i].name) / batches.count(losses[i].per);
    (i == 0 ? metrics.loss : metrics.extra["loss/" + losses[i].name]) = mean;
  }
}

void Trainer::refuse(const std::string& what, const StepBatches& batches) {
  std::string samples;
  for (const data::MicroBatch& batch : batches.batches) {
    for (const data::SampleId& id : batch.samples) {
      if (samples.size() < 400) samples += (samples.empty() ? "" : ", ") + data::to_string(id);
    }
  }
  ++progress_.skipped_steps;
  const std::string message = fmt::format("step {} is refused: {}; its samples: {}", progress_.step + 1, what, samples);
  if (config_.train.non_finite == NonFinite::kError) throw NonFiniteError("{} (train.non_finite: skip would go on)", message);
  if (++consecutive_skips_ > config_.train.max_skips) {
    throw NonFiniteError("{}; {} steps in a row, train.max_skips is {}", message, consecutive_skips_, config_.train.max_skips);
  }
  log::warn("{}", message);
}

// The norm over all ranks' gradients, each counted once; what is not finite is this rank's.
optim::GradientNorm Trainer::global_norm(std::span<const optim::OptimizedParameter> parameters) const {
  std::vector<optim::OptimizedParameter> counted;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (ranks_.layout.is_primary(model_->parameters->spec(trained_[i]))) counted.push_back(parameters[i]);
  }
  optim::GradientNorm norm = optim::gradient_norm(counted);
  norm.squared = ranks_.sum(norm.squared, "world", "gradient_norm");
  return norm;
}

// The first rank's fault that is not empty, on every rank: a step is refused by all or by none.
std::string Trainer::agreed_fault(const std::string& fault) const {
  const auto faults = ranks_.group("world").gather_counts({fault.empty() ? 0 : 1}, "faults");
  for (size_t rank = 0; rank < faults.size(); ++rank) {
    if (faults[rank][0] == 0) continue;
    const std::string text = ranks_.broadcast(fault, static_cast<int>(rank), "fault");
    return faults.size() == 1 ? text : fmt::format("rank {}: {}", rank, text);
  }
  return "";
}

namespace {

std::string fault_of(const optim::GradientNorm& norm) {
  if (norm.non_finite.empty()) return "";
  const optim::NonFiniteGradient& first = norm.non_finite.front();
  return fmt::format("the gradient of {} has {} elements that are not finite, the first at {} ({} parameters in all)", first.name,
                     first.count, first.first_index, norm.non_finite.size());
}

// No step brought them in; then no sample is to blame.
std::string fault_of(const engine::ParameterStore& parameters) {
  for (const engine::ParameterSpec& spec : parameters.specs()) {
    int64_t count = 0;
    parameters.for_pieces(parameters.find(spec.name), [&](int64_t, const at::Tensor& piece) {
      count += piece.isfinite().logical_not().sum().item<int64_t>();
    });
    if (count > 0)
      return fmt::format("the parameter {} holds {} values that are not finite, from before this step", spec.name, count);
  }
  return "";
}

}  // namespace

// Of this rank.
bool Trainer::has_finite_losses() const {
  for (const std::vector<double>& losses : model_->executor->losses()) {
    if (!std::ranges::all_of(losses, [](double loss) { return std::isfinite(loss); })) return false;
  }
  return true;
}

// Returns false when the step is refused: parameters, optimizer, biases stay as they were, on all ranks.
bool Trainer::update(StepMetrics& metrics, const StepBatches& batches) {
  sum_losses(metrics, batches);
  const auto parameters = optimized_parameters();
  const optim::GradientNorm norm = global_norm(parameters);
  metrics.grad_norm = norm.norm();
  if (!std::isfinite(metrics.loss) || !std::isfinite(norm.squared)) {
    std::string fault = fault_of(*model_->parameters);
    if (fault.empty()) fault = has_finite_losses() ? fault_of(norm) : "the loss is not finite";
    fault = agreed_fault(fault);
    refuse(fault.empty() ? "the gradient norm is not finite" : fault, batches);
    return false;
  }
  consecutive_skips_ = 0;
  trace::Scope scope("optimizer", "optimizer");
  std::vector<double> rates;
  for (const optim::Schedule& schedule : config_.schedules())
    rates.push_back(optim::learning_rate(schedule, static_cast<double>(progress_.step)));
  metrics.lr = rates[0];
  for (size_t i = 1; i < rates.size(); ++i) metrics.extra["lr/" + config_.optimizer.schedules[i - 1].name] = rates[i];
  optimizer_->step(parameters, rates, optim::clip_coefficient(metrics.grad_norm, config_.optimizer.max_norm));
  update_router_biases(*model_->parameters, loads_, config_.optimizer.router_bias_rate);
  model_->parameters->masters_changed();
  return true;
}

// Router loads of the whole step, the same on all ranks.
void Trainer::sum_loads() {
  loads_.clear();
  for (const auto& [name, counts] : model_->executor->counters())
    loads_[name] = ranks_.group("stage").all_reduce(counts, name).wait();
}

void Trainer::step() {
  const double begin = monotonic_seconds();
  const int64_t number = progress_.step + 1;
  for (auto& callback : callbacks_) callback->on_step_begin(*this, number);
  StepMetrics metrics;
  metrics.step = number;
  double flops = 0;
  {
    trace::Scope scope(fmt::format("step {}", number), "step");
    const StepBatches batches = fetch(number);
    for (auto& callback : callbacks_) callback->on_batches(*this, number, batches.batches);
    model_->executor->clear_counters();
    engine::reset_peak_allocated_bytes();
    for (const auto& [metric, clock] : clocks_) clock->take();  // what a validation took
    model_->executor->wait_clock().clear();
    forward_backward(metrics, batches);
    sum_loads();
    for (auto& callback : callbacks_) callback->on_gradients(*this, number);
    update(metrics, batches);
    metrics.extra.merge(router_metrics(*model_->parameters, loads_));
    metrics.extra.merge(model_->model->counter_metrics(loads_));
    model_->parameters->clear_gradients();
    metrics.tokens = batches.tokens;
    metrics.supervised_tokens = batches.supervised;
    metrics.data_seconds = batches.seconds;
    for (const data::MicroBatch& batch : batches.batches) flops += config_.model.architecture->needed_flops(batch);
    flops = ranks_.sum(flops, "dp", "step.flops");
  }
  progress_.step = number;
  progress_.tokens += metrics.tokens;
  progress_.is_lowest = false;
  metrics.seconds = monotonic_seconds() - begin;
  metrics.set_rates(flops, peak_gflops_);
  add_totals(metrics);
  for (auto& callback : callbacks_) callback->on_step_end(*this, metrics);
}

void Trainer::add_totals(StepMetrics& metrics) const {
  constexpr double kGiB = 1 << 30;
  const MemoryUse use = memory_use();
  metrics.memory_rss_bytes = use.rss_bytes;
  metrics.extra["memory/max_rss(GiB)"] = static_cast<double>(use.peak_rss_bytes) / kGiB;
  metrics.extra["memory/max_active(GiB)"] = static_cast<double>(engine::peak_allocated_bytes()) / kGiB;
  double waited = 0;
  for (const auto& [axis, seconds] : model_->executor->wait_clock().seconds()) {
    waited += seconds;
    if (ranks_.layout.size(axis) > 1) metrics.extra[fmt::format("exchange/wait_{}(s)", axis)] = seconds;
  }
  if (ranks_.world != nullptr) metrics.extra["exchange/wait(s)"] = waited;
  const data::LoaderCounters& data = loader_->counters();
  metrics.extra["data/epoch"] = loader_->epoch();
  metrics.extra["data/samples_dropped"] = static_cast<double>(data.samples_dropped + data.bad_lines + data.bad_images);
  metrics.extra["data/tokens_masked(%)"] =
      100 - 100 * static_cast<double>(metrics.supervised_tokens) / static_cast<double>(std::max<int64_t>(1, metrics.tokens));
  metrics.extra["train/skipped_steps"] = static_cast<double>(progress_.skipped_steps);
  for (const auto& [metric, clock] : clocks_) metrics.extra[metric] = clock->take();
  for (const auto& [rule, seconds] : optimizer_->seconds()) metrics.extra[fmt::format("optimizer/{}(s)", rule)] = seconds;
}

double Trainer::validate() {
  if (!validation_loader_) return std::numeric_limits<double>::quiet_NaN();
  trace::Scope scope("validation", "validation");
  double sum = 0;
  int64_t supervised = 0;
  const int64_t micro_batches = config_.validation.steps * schedules_.at(config_.train.global_batch_size).micro_batches;
  for (int64_t done = 0; micro_batches == 0 || done < micro_batches; ++done) {
    const auto batch = validation_loader_->next();
    if (!batch) break;
    model_->executor->run(validation_schedule_, {model_->inputs(*batch)}, {});
    sum += model_->executor->losses()[0][0];
    supervised += batch->supervised_tokens;
  }
  validation_loader_->rewind();  // the same samples next time
  supervised = ranks_.sum(supervised, "dp", "validation.supervised");
  return ranks_.sum(sum, "fsdp", "validation.loss") / static_cast<double>(std::max<int64_t>(1, supervised));
}

}  // namespace hyperparallel::train
