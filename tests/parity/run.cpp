#include "parity/run.h"

#include <future>
#include <mutex>

#include "base/random.h"
#include "dist/thread_comm.h"
#include "models/deepseek_v41/adapter.h"

namespace hyperparallel::parity {

using train::Config;
using train::StepMetrics;
using train::Trainer;
using train::TrainerCallback;

std::vector<std::string> tiny_overrides(const std::vector<std::string>& more) {
  std::vector<std::string> all{
      "--train.threads=1",
      "--validation.interval=0",
      "--data.workers=0",
      "--data.train=[" HP_SOURCE_DIR "/tests/parity/samples.jsonl]",
      "--data.seq_len=107",
      "--model.cache_quantisation=false",
      "--model.text_config.n_routed_experts=9",
      "--train.global_batch_size=8",
      "--train.local_batch_size=1",
      "--train.seed=2",  // no choice of these steps is near a tie: one rank in FP32 and in double differ by 3e-7
      "--train.steps=" + std::to_string(kSteps)};
  // What is said otherwise is left to `more`.
  const std::vector<std::string> usual_ones{"--optimizer.name=adamw", "--optimizer.lr=2e-3", "--train.loss.draft.weight=0",
                                            "--train.loss.z=0"};
  for (const std::string& usual : usual_ones) {
    const std::string key = usual.substr(0, usual.find('=') + 1);
    if (std::ranges::none_of(more, [&](const std::string& other) { return other.starts_with(key); })) all.push_back(usual);
  }
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

Config tiny(const std::vector<std::string>& overrides) {
  std::vector<std::string> all = tiny_overrides(overrides);
  all.push_back("--train.output=" + (std::filesystem::temp_directory_path() / "hyperparallel-unused").string());
  train::LoadOptions options;
  options.for_training = true;
  return train::load_config(std::filesystem::path(HP_SOURCE_DIR) / "configs/tiny.yaml", all, options);
}

namespace {

class Collector : public TrainerCallback {
 public:
  Collector(Outcome& outcome, std::mutex& mutex) : outcome_(outcome), mutex_(mutex) {}
  void on_train_begin(Trainer& trainer) override {
    collect(trainer, outcome_.before, [](engine::ParameterStore& store, auto id) { return store.master(id); });
  }
  void on_batches(Trainer& trainer, int64_t step, const std::vector<data::MicroBatch>& batches) override {
    made_.clear();
    if (step != 1) return;
    batches_ = batches;
    trainer.model().executor->watch([this](const std::string& name, const std::string& rows, const at::Tensor& tensor) {
      const bool is_choice = name.ends_with(".topk") || name.ends_with(".candidate_blocks") || name.ends_with(".expert_ids");
      if (is_choice) made_[name].emplace_back(rows, tensor.to(at::kLong));
    });
  }
  void on_gradients(Trainer& trainer, int64_t step) override {
    if (step != 1) return;
    trainer.model().executor->watch({});
    collect(trainer, outcome_.gradients, [](engine::ParameterStore& store, auto id) { return store.gradient(id); });
    collect_choices(trainer);
  }
  void on_step_end(Trainer& trainer, StepMetrics& metrics) override {
    const std::lock_guard lock(mutex_);
    if (!trainer.ranks().is_first()) return;
    outcome_.losses.push_back(metrics.loss);
    outcome_.norms.push_back(metrics.grad_norm);
    if (metrics.step == 1) outcome_.loads = trainer.router_loads();
  }
  void on_train_end(Trainer& trainer) override {
    collect(trainer, outcome_.parameters, [](engine::ParameterStore& store, auto id) { return store.master(id); });
  }

 private:
  template <class Get>
  void collect(Trainer& trainer, Tensors& into, const Get& get) {
    const std::lock_guard lock(mutex_);
    engine::ParameterStore& store = *trainer.model().parameters;
    for (const engine::ParameterSpec& spec : store.specs()) {
      const engine::ParameterId id = store.find(spec.name);
      const at::Tensor mine = get(store, id);
      if (!mine.defined()) continue;
      at::Tensor& whole = into.try_emplace(spec.name, at::full(spec.shape, NAN, mine.options())).first->second;
      engine::narrow_to(whole, store.placement(id).owned).copy_(mine);
    }
  }

  // Each rank writes the rows that it holds; those that several hold must agree.
  void collect_choices(Trainer& trainer) {
    constexpr int64_t kNobody = -2, kWidth = 16;
    const std::lock_guard lock(mutex_);
    const engine::Layout& layout = trainer.ranks().layout;
    for (size_t m = 0; m < batches_.size(); ++m) {
      const models::deepseek_v41::V41Model& v41 = models::deepseek_v41::v41_model(*trainer.model().model);
      const models::deepseek_v41::ModelBatch batch = v41.batch_of(batches_[m]);
      const auto held = held_rows(v41.model, batch);
      const int64_t row = static_cast<int64_t>(m) * layout.size("dp") + layout.coordinate("dp");
      for (const auto& [name, made] : made_) {
        ASSERT_EQ(made.size(), batches_.size()) << name;
        const auto& [symbol, choice] = made[m];
        const at::Tensor rows = at::tensor(held.at(symbol).rows, at::kLong);
        const int64_t tokens =
            symbol.starts_with("draft.") ? batch.anchors.size(0) * v41.model.config.text.draft.block_size : batch.ids.size(0);
        at::Tensor& whole =
            outcome_.choices[name].try_emplace(std::to_string(row), at::full({tokens, kWidth}, kNobody, at::kLong)).first->second;
        at::Tensor wide = at::full({choice.size(0), kWidth}, -1, at::kLong);
        ASSERT_LE(choice.size(1), kWidth);
        wide.narrow(1, 0, choice.size(1)).copy_(choice);
        const at::Tensor before = whole.index_select(0, rows);
        EXPECT_TRUE(before.eq(kNobody).logical_or(before.eq(wide)).all().item<bool>()) << name << ": ranks choose differently";
        whole.index_copy_(0, rows, wide);
      }
    }
  }

  Outcome& outcome_;
  std::mutex& mutex_;
  std::vector<data::MicroBatch> batches_;
  std::map<std::string, std::vector<std::pair<std::string, at::Tensor>>>
      made_;  // by name, by micro-batch: symbol of rows, tensor
};

class StopAfter : public TrainerCallback {
 public:
  explicit StopAfter(int64_t last) : last_(last) {}
  void on_step_end(Trainer& trainer, StepMetrics& metrics) override {
    if (metrics.step == last_) trainer.request_stop("test");
  }

 private:
  int64_t last_;
};

// Weights that differ by rounding.
class Disturb : public TrainerCallback {
 public:
  explicit Disturb(int which) : which_(which) {}
  void on_train_begin(Trainer& trainer) override {
    engine::ParameterStore& store = *trainer.model().parameters;
    for (const engine::ParameterSpec& spec : store.specs()) {
      at::Tensor& master = store.master(store.find(spec.name));
      at::Tensor noise = at::empty(master.sizes(), at::kFloat);
      fill_normal(noise.mutable_data_ptr<float>(), noise.numel(), static_cast<uint64_t>(which_), spec.name, 0, 1.0);
      master.copy_(master.to(at::kDouble) * (1 + 6e-8 * noise.sign()));
    }
    store.masters_changed();
  }

 private:
  int which_;
};

double rms(const at::Tensor& tensor) {
  return tensor.numel() == 0 ? 0 : tensor.to(at::kDouble).square().mean().sqrt().item<double>();
}

// The largest rounding error of a parameter at the end, r of NOTE [Rules of comparison].
const std::map<std::string, double>& parameter_rounding(const Data& data) {
  static std::map<Data, std::map<std::string, double>> known;
  const auto [place, is_new] = known.try_emplace(data);
  std::map<std::string, double>& rounding = place->second;
  if (!is_new) return rounding;
  const auto add = [&](const Tensors& parameters) {
    for (const auto& [name, parameter] : parameters)
      rounding[name] = std::max(rounding[name], rms(parameter - exact(data).parameters.at(name)));
  };
  add(one_rank(data).parameters);
  std::vector<std::future<Outcome>> runs;
  for (int which = 1; which <= 4; ++which) {
    runs.push_back(std::async(std::launch::async, [&data, which] {
      RunOptions options;
      options.callbacks = [which] {
        std::vector<std::unique_ptr<TrainerCallback>> callbacks;
        callbacks.push_back(std::make_unique<Disturb>(which));
        return callbacks;
      };
      return run({"", 1, {}, {}, data}, options);
    }));
  }
  for (std::future<Outcome>& one : runs) add(one.get().parameters);
  return rounding;
}

}  // namespace

Outcome run(const Layout& layout, const RunOptions& options) {
  Outcome outcome;
  std::mutex mutex;
  std::vector<std::string> overrides = layout.data;
  overrides.insert(overrides.end(), layout.overrides.begin(), layout.overrides.end());
  const Config config = tiny(overrides);
  dist::run_ranks(layout.ranks, {}, [&](dist::World& world) {
    Trainer trainer(config, &world);
    if (options.begin) options.begin(trainer);
    if (options.callbacks) {
      for (auto& callback : options.callbacks()) trainer.add(std::move(callback));
    }
    trainer.add(std::make_unique<Collector>(outcome, mutex));
    trainer.run();
    if (options.end) options.end(trainer);
  });
  return outcome;
}

std::unique_ptr<TrainerCallback> stop_after(int64_t step) {
  return std::make_unique<StopAfter>(step);
}

const Outcome& one_rank(const Data& data) {
  static std::map<Data, Outcome> known;
  const auto [place, is_new] = known.try_emplace(data);
  if (is_new) place->second = run({"", 1, {}, {}, data});
  return place->second;
}

const Outcome& exact(const Data& data) {
  static std::map<Data, Outcome> known;
  const auto [place, is_new] = known.try_emplace(data);
  if (is_new) place->second = run({"", 1, {"--train.dtype=float64"}, {}, data});
  return place->second;
}

double relative(double a, double b) {
  return std::abs(a - b) / std::abs(b);
}

double largest(const at::Tensor& tensor) {
  return tensor.numel() == 0 ? 0 : tensor.abs().max().item<double>();
}

namespace {

void expect_gradients(const Tensors& found, const Data& data) {
  ASSERT_EQ(found.size(), one_rank(data).gradients.size());
  for (const auto& [name, gradient] : one_rank(data).gradients) {
    const at::Tensor &precise = exact(data).gradients.at(name), own = gradient.to(at::kDouble);
    const double scale = largest(precise), rounding = largest(own - precise);
    const double error = largest(found.at(name).to(at::kDouble) - precise);
    EXPECT_LE(error, std::max(10 * rounding, 3e-5 * scale)) << name << ": rounding " << rounding << ", scale " << scale;
  }
}

void expect_choices(const Outcome& found, const Data& data) {
  ASSERT_EQ(found.loads.size(), one_rank(data).loads.size());
  for (const auto& [name, loads] : one_rank(data).loads) EXPECT_TRUE(loads.equal(found.loads.at(name))) << name;
  ASSERT_EQ(found.choices.size(), one_rank(data).choices.size());
  for (const auto& [name, rows] : one_rank(data).choices) {
    for (const auto& [row, expected] : rows) {
      const at::Tensor &own = found.choices.at(name).at(row), other = own.ne(expected).any(1);
      if (!other.any().item<bool>()) continue;
      const at::Tensor tie = exact(data).choices.at(name).at(row).ne(expected).any(1);
      ADD_FAILURE() << name << " of row " << row << ": " << other.sum().item<int64_t>() << " tokens choose otherwise, of which "
                    << other.logical_and(tie).sum().item<int64_t>() << " are ties, which choose otherwise in double, too";
    }
  }
}

// What departs from one rank by more than rounding, in words; empty: nothing.
std::string departing_loss(const std::vector<double>& losses, const Data& data, double bound) {
  const std::vector<double>& expected = one_rank(data).losses;
  for (size_t step = 1; step < losses.size(); ++step) {
    const double difference = relative(losses[step], expected[step]);
    if (!(difference < bound)) return fmt::format("the loss of step {} is {:.2g} off", step + 1, difference);
  }
  return {};
}

std::string departing_parameter(const Tensors& found, const Data& data) {
  for (const auto& [name, precise] : exact(data).parameters) {
    const double rounding = parameter_rounding(data).at(name), update = rms(precise - exact(data).before.at(name));
    const double error = rms(found.at(name) - precise);
    if (!(error <= std::max(10 * rounding, 0.002 * update)))
      return fmt::format("{} is {:.2g} off at the end (rounding {:.2g}, update {:.2g})", name, error, rounding, update);
  }
  return {};
}

}  // namespace

void expect_loss_and_norm(const std::vector<double>& losses, const std::vector<double>& norms, const Data& data) {
  const Outcome& expected = one_rank(data);
  ASSERT_EQ(losses.size(), expected.losses.size());
  EXPECT_LT(relative(losses[0], expected.losses[0]), 1e-5) << losses[0] << " " << expected.losses[0];
  EXPECT_LT(relative(norms[0], expected.norms[0]), 1e-5) << norms[0] << " " << expected.norms[0];
}

void expect_first_step(const Outcome& found, const Data& data) {
  expect_loss_and_norm(found.losses, found.norms, data);
  expect_gradients(found.gradients, data);
  expect_choices(found, data);
}

void expect_later_steps(const Layout& layout, const Outcome& found, const Runner& again) {
  std::string departing = departing_loss(found.losses, layout.data, 1e-4);
  if (departing.empty()) departing = departing_parameter(found.parameters, layout.data);
  if (departing.empty()) return;
  std::cout << "flip: " << departing << "; compared in double\n";
  EXPECT_EQ(departing_loss(found.losses, layout.data, 1e-3), "");
  expect_same_in_double(layout, again);
}

void expect_same_in_double(const Layout& layout, const Runner& runner) {
  Layout precise = layout;
  precise.overrides.push_back("--train.dtype=float64");
  const Outcome found = runner(precise);
  const Outcome& expected = exact(layout.data);
  ASSERT_EQ(found.losses.size(), expected.losses.size());
  for (size_t step = 0; step < found.losses.size(); ++step)
    EXPECT_LT(relative(found.losses[step], expected.losses[step]), 1e-9) << "step " << step + 1 << " in double";
  for (const auto& [name, parameter] : expected.parameters) {
    const double update = rms(parameter - expected.before.at(name));
    EXPECT_LE(rms(found.parameters.at(name) - parameter), 1e-5 * update) << name << " in double";
  }
}

}  // namespace hyperparallel::parity
