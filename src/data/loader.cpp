#include "data/loader.h"

#include <algorithm>
#include <deque>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "base/log.h"
#include "base/trace.h"
#include "data/jsonl.h"
#include "data/mixture.h"
#include "data/ordered_queue.h"
#include "data/packing.h"

namespace hyperparallel::data {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(LoaderCounters, samples, samples_dropped, samples_truncated, bad_lines, bad_images,
                                   tokens_truncated, tokens, tokens_supervised, tokens_padding)

namespace {

constexpr int64_t kMaxMessages = 100;  // rejected samples that are logged one by one

// A sample and its place in the files, by which a saved position names it.
struct Item {
  Mixture::Pick pick;
  Sample sample;
};
using Rows = std::deque<PackedRow<Item>>;

// What does not change while batches are made.
struct Context {
  LoaderOptions options;
  std::vector<JsonlFile> files;
  SampleEncoder encoder;

  int64_t samples() const {
    int64_t total = 0;
    for (const JsonlFile& file : files) total += file.samples();
    return total;
  }
  Mixture mixture() const {
    std::vector<Mixture::Source> sources;
    for (size_t i = 0; i < files.size(); ++i) sources.push_back({files[i].samples(), weight(i)});
    return Mixture(sources, options.seed, options.shuffle, options.repeat);
  }
  double weight(size_t file) const {
    const double given = options.files[file].weight;
    return given > 0 ? given : static_cast<double>(files[file].samples());
  }
  SampleEncoder::Outcome load(const Mixture::Pick& pick) const {
    const JsonlFile& file = files[pick.source];
    const SampleId id{file.path(), file.line_number(pick.sample)};
    const trace::Scope scope("sample", "data");
    return encoder.load([&] { return file.read(pick.sample); }, id);
  }
};

// Where the loader stands: enough to make the next batch. Rows that are begun are kept as places in the files.
struct Position {
  std::vector<int64_t> taken;  // samples of each file
  using Picks = std::vector<std::vector<std::pair<int64_t, int64_t>>>;
  Picks ready, open;  // rows: finished and not delivered; open for further samples
  LoaderCounters counters;
};
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Position, taken, ready, open, counters)

struct Prepared {
  MicroBatch batch;
  Position position;  // after the batch
};

// Makes one batch after the other. Runs in one thread at a time.
class Assembler {
 public:
  Assembler(const Context& context, const Position& position)
      : context_(context),
        mixture_(context.mixture()),
        counters_(position.counters),
        taken_(position.taken),
        packer_(context.options.seq_len, context.options.packing ? context.options.open_rows : 0),
        rejected_(context.files.size(), 0),
        queue_(context.options.workers, "data") {
    mixture_.restore(taken_);
    for (const auto& rows : {position.ready, position.open}) {
      for (const auto& row : rows) {
        for (const auto& [source, sample] : row) submit({source, sample});
      }
    }
    ready_ = restore_rows(position.ready);
    packer_.restore_open(restore_rows(position.open));
  }

  // Nothing at the end of the data.
  std::optional<Prepared> next() {
    const LoaderOptions& options = context_.options;
    const int64_t group = options.rows * options.world;
    while (ready_rows() < group && add_sample()) {
    }
    if (ready_rows() < group) packer_.finish(ready_);
    if (ready_.empty()) {
      if (counters_.samples == 0) throw_useless();
      return std::nullopt;
    }
    const int64_t count = std::min(group, ready_rows());
    Prepared prepared{make_batch(count), {}};
    ready_.erase(ready_.begin(), ready_.begin() + count);
    prepared.position = {taken_, picks(ready_), picks(packer_.open()), counters_};
    return prepared;
  }

 private:
  int64_t ready_rows() const { return static_cast<int64_t>(ready_.size()); }

  void submit(const Mixture::Pick& pick) {
    in_flight_.push_back(pick);
    queue_.submit([this, pick] { return context_.load(pick); });
  }

  std::pair<Mixture::Pick, SampleEncoder::Outcome> pop() {
    const Mixture::Pick pick = in_flight_.front();
    in_flight_.pop_front();
    return {pick, queue_.pop()};
  }

  // Moves the next sample of the order into the packer, or rejects it. False at the end of the data.
  bool add_sample() {
    const int64_t ahead = 2 * context_.options.workers + 1;
    while (queue_.size() < ahead) {
      const std::optional<Mixture::Pick> pick = mixture_.next();
      if (!pick) break;
      submit(*pick);
    }
    if (queue_.size() == 0) return false;
    auto [pick, outcome] = pop();
    ++taken_[pick.source];
    if (!outcome.message.empty()) report(outcome);
    if (outcome.kind != SampleEncoder::Outcome::Kind::kSample) {
      ++rejected_[pick.source];
      if (nothing_is_usable()) throw_useless();
      return true;
    }
    rejected_.assign(context_.files.size(), 0);
    ++counters_.samples;
    const int64_t tokens = outcome.sample.tokens();
    packer_.add({pick, std::move(outcome.sample)}, tokens, ready_);
    return true;
  }

  // Whether all samples of all files have been rejected one after the other.
  bool nothing_is_usable() const {
    for (size_t i = 0; i < rejected_.size(); ++i) {
      if (rejected_[i] < context_.files[i].samples()) return false;
    }
    return true;
  }

  // Counts and logs a sample that is rejected or truncated.
  void report(const SampleEncoder::Outcome& outcome) {
    const char* action = "skipped";
    switch (outcome.kind) {
      case SampleEncoder::Outcome::Kind::kBadLine:
        ++counters_.bad_lines;
        break;
      case SampleEncoder::Outcome::Kind::kBadImage:
        ++counters_.bad_images;
        break;
      case SampleEncoder::Outcome::Kind::kOverLong:
        ++counters_.samples_dropped;
        action = "dropped";
        break;
      case SampleEncoder::Outcome::Kind::kSample:
        ++counters_.samples_truncated;
        counters_.tokens_truncated += outcome.sample.truncated_tokens;
        action = "truncated";
        break;
    }
    if (messages_ == kMaxMessages || !named_.insert(outcome.message).second) return;  // once, not in every epoch
    log::warn("{} ({})", outcome.message, action);
    if (++messages_ == kMaxMessages) log::warn("further samples like these are counted and not named");
  }

  [[noreturn]] void throw_useless() const {
    throw DataError("{}{}: none of {} samples can be trained on; {} are too long for {} tokens, {} lines and {} pictures are bad",
                    context_.files[0].path(), context_.files.size() > 1 ? " and the other data files" : "", context_.samples(),
                    counters_.samples_dropped, context_.options.seq_len, counters_.bad_lines, counters_.bad_images);
  }

  // A rank's part of the next `count` rows of all ranks.
  struct Part {
    std::vector<std::vector<const Sample*>> rows;
    int64_t width;
  };
  Part part_of(int64_t rank, int64_t count) const {
    const LoaderOptions& options = context_.options;
    Part part{{}, options.packing ? options.seq_len : 1};
    for (int64_t i = rank * options.rows; i < std::min(count, (rank + 1) * options.rows); ++i) {
      auto& row = part.rows.emplace_back();
      for (const Item& item : ready_[i].items) row.push_back(&item.sample);
      part.width = std::max(part.width, ready_[i].tokens);
    }
    if (part.rows.empty()) part.rows.emplace_back();  // the other ranks have a batch
    return part;
  }

  // This rank's part of the next `count` rows of all ranks, and the outlines of all parts.
  MicroBatch make_batch(int64_t count) {
    const trace::Scope scope("batch", "data");
    const LoaderOptions& options = context_.options;
    const Part own = part_of(options.rank, count);
    MicroBatch batch = make_micro_batch(own.rows, own.width, context_.encoder.pad_id(), options.sample.image_limits.patch_size);
    for (int64_t rank = 0; rank < options.world; ++rank) {
      const Part part = part_of(rank, count);
      batch.outlines.push_back(outline_of(part.rows, part.width));
    }
    const auto padding = std::ranges::count(batch.padding, 1);
    counters_.tokens_padding += padding;
    counters_.tokens += static_cast<int64_t>(batch.padding.size()) - padding;
    counters_.tokens_supervised += batch.supervised_tokens;
    return batch;
  }

  static Position::Picks picks(const Rows& rows) {
    Position::Picks out;
    for (const PackedRow<Item>& row : rows) {
      auto& places = out.emplace_back();
      for (const Item& item : row.items) places.emplace_back(item.pick.source, item.pick.sample);
    }
    return out;
  }

  // Rows of a position, whose samples have been submitted.
  Rows restore_rows(const Position::Picks& picks) {
    Rows rows;
    for (const auto& places : picks) {
      PackedRow<Item>& row = rows.emplace_back();
      for (size_t i = 0; i < places.size(); ++i) {
        auto [pick, outcome] = pop();
        if (outcome.kind != SampleEncoder::Outcome::Kind::kSample) {
          throw DataError("{}; it was usable when the loader state was saved", outcome.message);
        }
        row.tokens += outcome.sample.tokens();
        row.items.push_back({pick, std::move(outcome.sample)});
      }
    }
    return rows;
  }

  const Context& context_;
  Mixture mixture_;  // runs ahead of taken_ by what is in flight
  LoaderCounters counters_;
  std::vector<int64_t> taken_;
  Packer<Item> packer_;
  Rows ready_;
  std::vector<int64_t> rejected_;  // of each file, since the last sample that was used
  int64_t messages_ = 0;
  std::set<std::string> named_;  // messages that were logged
  std::deque<Mixture::Pick> in_flight_;
  OrderedQueue<SampleEncoder::Outcome> queue_;  // last: its threads use the rest
};

SampleOptions sample_options(const LoaderOptions& options) {
  SampleOptions sample = options.sample;
  sample.max_tokens = options.seq_len;
  return sample;
}

std::vector<JsonlFile> open_files(const LoaderOptions& options) {
  if (options.files.empty()) throw DataError("there are no data files");
  std::vector<JsonlFile> files;
  for (const DataFile& file : options.files) files.emplace_back(file.path);
  return files;
}

}  // namespace

struct Loader::Impl {
  Impl(const Tokenizer& tokenizer, LoaderOptions options)
      : context{options, open_files(options), SampleEncoder(tokenizer, sample_options(options))} {
    rewind();
  }

  void set_seq_len(int64_t tokens) {
    if (tokens == context.options.seq_len) return;
    move_to(std::move(position));  // forgets what was made ahead
    context.options.seq_len = tokens;
    context.encoder.set_max_tokens(tokens);
  }

  void move_to(Position to) {
    batches.reset();
    assembler.reset();
    position = std::move(to);
  }
  void rewind() { move_to({std::vector<int64_t>(context.files.size(), 0), {}, {}, {}}); }

  // What else decides the order. Restoring under other settings would silently give other batches.
  nlohmann::json settings() const {
    std::vector<double> weights;
    for (size_t i = 0; i < context.files.size(); ++i) weights.push_back(context.weight(i));
    const LoaderOptions& options = context.options;
    return {{"seed", options.seed},       {"seq_len", options.seq_len},
            {"packing", options.packing}, {"open_rows", options.open_rows},
            {"shuffle", options.shuffle}, {"repeat", options.repeat},
            {"weights", weights}};
  }

  nlohmann::json file_states() const {
    auto states = nlohmann::json::array();
    for (const JsonlFile& file : context.files) {
      states.push_back({{"path", file.path()}, {"bytes", file.bytes()}, {"hash", fmt::format("{:016x}", file.hash())}});
    }
    return states;
  }

  void check(const nlohmann::json& state) const;
  void check(const Position& wanted) const;

  Context context;
  Position position;  // after the last batch delivered
  std::optional<Assembler> assembler;
  std::optional<OrderedQueue<std::optional<Prepared>>> batches;  // one worker, which runs the assembler
};

void Loader::Impl::check(const nlohmann::json& state) const {
  const auto& files = state.at("files");
  if (files.size() != context.files.size()) {
    throw DataError("the loader state is of {} data files, the configuration names {}", files.size(), context.files.size());
  }
  const nlohmann::json now = file_states();
  for (size_t i = 0; i < files.size(); ++i) {
    if (files[i].at("bytes") != now[i]["bytes"] || files[i].at("hash") != now[i]["hash"]) {
      throw DataError("{}: the file has changed since the loader state was saved ({} bytes, hash {}; then {}: {} bytes, hash {})",
                      context.files[i].path(), now[i]["bytes"].dump(), now[i]["hash"].get<std::string>(),
                      files[i].at("path").get<std::string>(), files[i].at("bytes").dump(),
                      files[i].at("hash").get<std::string>());
    }
  }
  const nlohmann::json current = settings();
  for (const auto& [key, value] : current.items()) {
    const auto& saved = state.at("settings").at(key);
    if (saved != value)
      throw DataError("the loader state was saved with {} {}, the configuration says {}", key, saved.dump(), value.dump());
  }
}

void Loader::Impl::check(const Position& wanted) const {
  if (wanted.taken.size() != context.files.size())
    throw DataError("the loader state is damaged: {} files counted", wanted.taken.size());
  for (const auto* rows : {&wanted.ready, &wanted.open}) {
    for (const auto& row : *rows) {
      for (const auto& [source, sample] : row) {
        if (source < 0 || source >= static_cast<int64_t>(context.files.size()) || sample < 0 ||
            sample >= context.files[source].samples()) {
          throw DataError("the loader state is damaged: there is no sample {} of file {}", sample, source);
        }
      }
    }
  }
}

Loader::Loader(const Tokenizer& tokenizer, LoaderOptions options) {
  HP_CHECK(options.seq_len > 0 && options.rows > 0 && options.open_rows >= 0, "sizes of the loader");
  HP_CHECK(options.world > 0 && options.rank >= 0 && options.rank < options.world, "rank {} of {}", options.rank, options.world);
  impl_ = std::make_unique<Impl>(tokenizer, std::move(options));
}

Loader::~Loader() = default;

std::optional<MicroBatch> Loader::next() {
  const LoaderOptions& options = impl_->context.options;
  try {
    if (!impl_->batches) {
      impl_->assembler.emplace(impl_->context, impl_->position);
      impl_->batches.emplace(options.workers > 0 ? 1 : 0, "data batches");
    }
    const int64_t ahead = options.workers > 0 ? options.prefetch_batches + 1 : 1;
    while (impl_->batches->size() < ahead) impl_->batches->submit([impl = impl_.get()] { return impl->assembler->next(); });
    std::optional<Prepared> prepared = impl_->batches->pop();
    if (!prepared) return std::nullopt;
    impl_->position = std::move(prepared->position);
    return std::move(prepared->batch);
  } catch (...) {
    impl_->batches.reset();  // a further call starts again from the last batch delivered
    impl_->assembler.reset();
    throw;
  }
}

nlohmann::json Loader::state() const {
  return {{"version", 1}, {"settings", impl_->settings()}, {"files", impl_->file_states()}, {"position", impl_->position}};
}

void Loader::set_seq_len(int64_t tokens) {
  HP_CHECK(tokens > 0, "rows of {} tokens", tokens);
  impl_->set_seq_len(tokens);
}

void Loader::restore(const nlohmann::json& state) {
  try {
    if (state.at("version") != 1)
      throw DataError("the loader state has version {}; this program reads 1", state.at("version").dump());
    impl_->check(state);
    Position position = state.at("position").get<Position>();
    impl_->check(position);
    impl_->move_to(std::move(position));
  } catch (const nlohmann::json::exception& error) {
    throw DataError("the loader state is damaged: {}", error.what());
  }
}

void Loader::rewind() {
  impl_->rewind();
}

const LoaderCounters& Loader::counters() const {
  return impl_->position.counters;
}

double Loader::epoch() const {
  int64_t taken = 0;
  for (const int64_t count : impl_->position.taken) taken += count;
  return static_cast<double>(taken) / static_cast<double>(samples());
}

int64_t Loader::samples() const {
  return impl_->context.samples();
}

}  // namespace hyperparallel::data
