#include "train/generate.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/error.h"
#include "base/random.h"

namespace hyperparallel::train {

using models::tensor_of;
using models::deepseek_v41::EngramHasher;
using models::deepseek_v41::ModelBatch;
using models::deepseek_v41::ModelConfig;
using models::deepseek_v41::ModelProgram;
using models::deepseek_v41::ProgramOptions;

namespace {

ModelProgram cached_program(const ModelConfig& config, const engine::ParameterStore& parameters, ProgramOptions options) {
  options.cached = true;
  options.trainable = {};
  ModelProgram model = build_program(config, options);
  // Those of draft layers, which no token needs, are the last.
  const size_t count = model.program.parameters.size();
  HP_CHECK(count <= parameters.size(), "the model has {} parameters, {} are given", count, parameters.size());
  for (size_t i = 0; i < count; ++i) {
    HP_CHECK(model.program.parameters[i].name == parameters.specs()[i].name, "the parameter {} stands where {} belongs",
             parameters.specs()[i].name, model.program.parameters[i].name);
  }
  return model;
}

std::vector<engine::Action> forward_schedule(const engine::Program& program) {
  engine::ScheduleOptions options;
  options.backward = false;
  return build_schedule(program, options);
}

}  // namespace

Generator::Generator(const ModelConfig& config, engine::ParameterStore& parameters, const EngramHasher* hasher,
                     GenerateOptions options, ProgramOptions program)
    : options_(std::move(options)),
      model_(cached_program(config, parameters, program)),
      parameters_(parameters),
      hasher_(hasher),
      executor_(model_.program, parameters),
      schedule_(forward_schedule(model_.program)) {
  HP_CHECK(hasher_ != nullptr || model_.inputs.engram.empty(), "a model with Engram layers needs their hashes");
  HP_CHECK(options_.max_new_tokens >= 1 && options_.max_sequences >= 1, "{} new tokens of {} sequences", options_.max_new_tokens,
           options_.max_sequences);
}

int64_t Generator::add(Prompt prompt) {
  HP_CHECK(!prompt.ids.empty(), "a prompt without tokens");
  HP_CHECK(prompt.image.empty() || prompt.image.size() == prompt.ids.size(), "{} image marks for {} tokens", prompt.image.size(),
           prompt.ids.size());
  EngramHasher::Window window;
  if (hasher_ != nullptr) window = hasher_->document_start();
  waiting_.push_back({added_, std::move(prompt), 0, std::move(window)});
  return added_++;
}

void Generator::admit() {
  int64_t tokens = static_cast<int64_t>(active_.size());
  while (!waiting_.empty() && static_cast<int64_t>(active_.size()) < options_.max_sequences) {
    tokens += static_cast<int64_t>(waiting_.front().fresh.ids.size());
    if (tokens > options_.tokens_per_run && !active_.empty()) break;
    active_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
    prefix_.sequences.emplace_back();
  }
}

ModelBatch Generator::make_batch() {
  std::vector<int64_t> ids, borders{0}, starts;
  std::vector<uint8_t> image;
  std::vector<at::Tensor> patches, grids;
  for (const Sequence& sequence : active_) {
    const Prompt& fresh = sequence.fresh;
    for (int64_t start : fresh.image_starts) starts.push_back(borders.back() + start);
    if (fresh.patches.defined()) patches.push_back(fresh.patches), grids.push_back(fresh.grids);
    ids.insert(ids.end(), fresh.ids.begin(), fresh.ids.end());
    image.insert(image.end(), fresh.image.begin(), fresh.image.end());
    image.resize(ids.size(), 0);
    borders.push_back(static_cast<int64_t>(ids.size()));
  }
  ModelBatch batch;
  batch.ids = tensor_of(ids);
  batch.cu_seqlens = tensor_of(borders);
  batch.image_mask = at::tensor(image, at::kByte).to(at::kBool);
  batch.padding = at::zeros_like(batch.image_mask);
  if (hasher_ != nullptr) {
    const int64_t width = hasher_->layers() * hasher_->columns();
    batch.engram_rows = at::empty({static_cast<int64_t>(ids.size()), hasher_->layers(), hasher_->columns()}, at::kLong);
    int64_t* rows = batch.engram_rows.mutable_data_ptr<int64_t>();
    for (size_t i = 0; i < active_.size(); ++i) {
      const size_t first = borders[i], count = borders[i + 1] - borders[i];
      hasher_->append(active_[i].window, {ids.data() + first, count}, {image.data() + first, count},
                      {rows + borders[i] * width, count * static_cast<size_t>(width)});
    }
  }
  if (const auto& vision = model_.config.vision) {
    const int64_t pixels = 3 * vision->patch_size * vision->patch_size;
    const auto options = at::TensorOptions().dtype(parameters_.compute_type());
    batch.patches = patches.empty() ? at::empty({0, pixels}, options) : at::cat(patches);
    batch.grids = grids.empty() ? at::empty({0, 2}, at::kLong) : at::cat(grids);
    batch.image_starts = tensor_of(starts);
  } else {
    HP_CHECK(patches.empty(), "a model without a vision tower was given an image");
  }
  return batch;
}

std::vector<Generator::Token> Generator::step() {
  admit();
  if (active_.empty()) return {};
  const ModelBatch batch = make_batch();
  const at::ScalarType compute = parameters_.compute_type();
  executor_.run(schedule_, {prepare_inputs(model_, batch, compute, &prefix_)}, {{}});
  const engine::ValueMap& outputs = executor_.outputs()[0];
  prefix_ = advance(model_, prefix_, batch, outputs);
  logits_ = outputs.at(model_.inputs.logits.index);

  std::vector<Token> tokens;
  size_t kept = 0;
  for (size_t i = 0; i < active_.size(); ++i) {
    Sequence& sequence = active_[i];
    const int64_t id = choose_token(logits_[static_cast<int64_t>(i)], options_, sequence.number, sequence.made++);
    const bool stops = std::find(options_.stop_ids.begin(), options_.stop_ids.end(), id) != options_.stop_ids.end();
    tokens.push_back({sequence.number, id, stops || sequence.made == options_.max_new_tokens});
    if (tokens.back().last) continue;
    sequence.fresh = Prompt{{id}, {}, {}, {}, {}};
    if (kept != i) active_[kept] = std::move(sequence), prefix_.sequences[kept] = std::move(prefix_.sequences[i]);
    ++kept;
  }
  active_.resize(kept);
  prefix_.sequences.resize(kept);
  if (kept == 0) prefix_ = {};
  return tokens;
}

int64_t choose_token(const at::Tensor& logits, const GenerateOptions& options, int64_t sequence, int64_t position) {
  const at::Tensor values = logits.to(at::kDouble).contiguous();
  const double* logit = values.const_data_ptr<double>();
  const int64_t count = values.numel();
  const int64_t best = std::max_element(logit, logit + count) - logit;  // the first among equals
  if (options.temperature <= 0) return best;

  std::vector<double> share(count);
  for (int64_t i = 0; i < count; ++i) share[i] = std::exp((logit[i] - logit[best]) / options.temperature);
  std::vector<int64_t> order(count);
  std::iota(order.begin(), order.end(), 0);
  double total = std::accumulate(share.begin(), share.end(), 0.0);
  if (options.top_p < 1) {
    std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return share[a] > share[b]; });
    double held = 0;
    size_t taken = 0;
    while (taken < order.size() && (taken == 0 || held < options.top_p * total)) held += share[order[taken++]];
    order.resize(taken);
    total = held;
  }
  double left =
      RandomStream(options.seed, "generate/" + std::to_string(sequence)).uniform(static_cast<uint64_t>(position)) * total;
  for (int64_t id : order) {
    if (left < share[id]) return id;
    left -= share[id];
  }
  return order.front();  // rounding used up the shares
}

}  // namespace hyperparallel::train
