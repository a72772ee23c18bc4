#include "models/adapter/builder.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/error.h"
#include "base/glob.h"
#include "base/yaml.h"
#include "engine/executor.h"
#include "kernels/types.h"

namespace hyperparallel::models {

using engine::Initialiser;
using engine::ParameterId;
using engine::ParameterUse;
using engine::SegmentRun;
using engine::UpdateHint;
using engine::ValueId;
using engine::ValueKind;
using engine::VocabularyPart;

constexpr int64_t kNotScored = -100;  // a target without a loss

std::string layer_name(int64_t layer) {
  return "layers." + std::to_string(layer);
}
std::string layer_parameter(int64_t layer) {
  return "model.layers." + std::to_string(layer) + ".";
}

ParameterId DecoderBuilder::parameter(engine::ParameterSpec spec, const Cut& cut) {
  spec.cut_axis = cut.axis;
  spec.cut_dim = cut.dim;
  spec.role = cut.role;
  spec.trainable = trainable_.empty() ||
                   std::ranges::any_of(trainable_, [&](const std::string& glob) { return glob_matches(glob, spec.name); });
  names_.push_back(spec.name);
  if (const RoleOverride* asked = override_of(spec.name); asked != nullptr && asked->role != cut.role) {
    const auto accepted = accepted_.find(spec.name);
    mistakes_.push_back(fmt::format("{} cannot be `{}` as `{}` asks; accepted: {}", spec.name, asked->role, asked->match,
                                    accepted == accepted_.end() ? cut.role : accepted->second));
  }
  spec.partial_over_tp = partial && cut.axis.empty() && spec.travels();
  return program.parameter(std::move(spec));
}
const RoleOverride* DecoderBuilder::override_of(const std::string& name) {
  for (const RoleOverride& entry : overrides_) {
    if (!glob_matches(entry.match, name)) continue;
    matched_.insert(entry.match);
    return &entry;
  }
  return nullptr;
}

size_t DecoderBuilder::way_of(const std::vector<std::string>& names, const std::vector<std::vector<Cut>>& ways) {
  std::string accepted;
  for (const std::vector<Cut>& way : ways) {
    std::vector<std::string> roles;
    for (const Cut& cut : way) roles.push_back(cut.role);
    accepted += fmt::format("{}{}", accepted.empty() ? "" : " or ", fmt::join(roles, " + "));
  }
  if (names.size() > 1) accepted += fmt::format(" (for {})", fmt::join(names, " + "));
  for (const std::string& name : names) accepted_[name] = accepted;
  for (size_t w = 0; w < ways.size(); ++w) {
    bool fits = true;
    for (size_t i = 0; i < names.size(); ++i) {
      const RoleOverride* asked = override_of(names[i]);
      fits = fits && (asked == nullptr || asked->role == ways[w][i].role);
    }
    if (fits) return w;
  }
  return 0;  // `parameter` finds what does not fit
}

void DecoderBuilder::check_overrides() {
  for (const RoleOverride& entry : overrides_) {
    const bool matches = matched_.contains(entry.match) ||
                         std::ranges::any_of(names_, [&](const std::string& name) { return glob_matches(entry.match, name); });
    if (matches) continue;
    const std::string nearest = nearest_word(entry.match, names_);
    mistakes_.push_back(fmt::format("`{}` matches no parameter{}", entry.match,
                                    nearest.empty() ? "" : fmt::format("; the nearest is {}", nearest)));
  }
  if (!mistakes_.empty()) throw ConfigError("parallel.plan_overrides: {}", fmt::join(mistakes_, "\nparallel.plan_overrides: "));
  for (const std::string& glob : trainable_) {
    if (std::ranges::any_of(names_, [&](const std::string& name) { return glob_matches(glob, name); })) continue;
    const std::string nearest = nearest_word(glob, names_);
    throw ConfigError("train.trainable: `{}` matches no parameter{}", glob,
                      nearest.empty() ? "" : fmt::format("; the nearest is {}", nearest));
  }
}

ParameterId DecoderBuilder::weight(const std::string& name, std::vector<int64_t> shape, const Cut& cut, UpdateHint update) {
  return parameter({name, std::move(shape), ParameterUse::kWeight, false, Initialiser::normal(std()), std::move(update)}, cut);
}
ParameterId DecoderBuilder::leaf(const std::string& name, std::vector<int64_t> shape, Initialiser start, UpdateHint update) {
  return parameter({name, std::move(shape), ParameterUse::kLeaf, false, std::move(start), std::move(update)});
}
ParameterId DecoderBuilder::master_leaf(const std::string& name, std::vector<int64_t> shape, Initialiser start, UpdateHint update,
                                        const Cut& cut) {
  return parameter({name, std::move(shape), ParameterUse::kLeaf, true, std::move(start), std::move(update)}, cut);
}
ParameterId DecoderBuilder::gain(const std::string& name, int64_t size) {
  return leaf(name, {size}, Initialiser::fill(1.0), UpdateHint::gain());
}
ParameterId DecoderBuilder::state(const std::string& name, std::vector<int64_t> shape) {
  return parameter({name, std::move(shape), ParameterUse::kState, true, Initialiser::fill(0.0)});
}

TokenInputs add_token_inputs(DecoderBuilder& builder, bool targets) {
  TokenInputs in;
  in.ids = builder.program.input("ids", ValueKind::kDiscrete, {"tokens"});
  if (targets) in.targets = builder.program.input("targets", ValueKind::kDiscrete, {"tokens"});
  in.positions = builder.program.input("positions", ValueKind::kDiscrete, {"tokens"});
  in.tp_rows = builder.rows.tp_rows = builder.program.input("tp_rows", ValueKind::kDiscrete, {builder.layout().size("tp")});
  return in;
}

Vocabulary add_vocabulary(DecoderBuilder& builder, const std::string& name, int64_t words, int64_t width, UpdateHint update,
                          const std::vector<std::string>& together) {
  const engine::Layout& layout = builder.layout();
  std::vector<std::string> names{name};
  names.insert(names.end(), together.begin(), together.end());
  if (builder.way_of(names, {std::vector<Cut>(names.size(), kByWord), std::vector<Cut>(names.size())}) == 0)
    return {builder.weight(name, {words, width}, kByWord, std::move(update)), layout.begin(words, "tp"),
            builder.local(words, kByWord)};
  const bool partial = std::exchange(builder.partial, true);  // every rank derives from its part of the tokens
  const ParameterId table = builder.weight(name, {words, width}, {}, std::move(update));
  builder.partial = partial;
  return {table, 0, words, layout.size("tp"), layout.coordinate("tp")};
}

at::Tensor own_part(const at::Tensor& values, int64_t parts, int64_t part, int64_t other) {
  if (parts == 1) return values;
  const int64_t rows = values.size(0), begin = engine::part_begin(rows, parts, part),
                end = engine::part_begin(rows, parts, part + 1);
  at::Tensor own = at::full_like(values, other);
  own.slice(0, begin, end).copy_(values.slice(0, begin, end));
  return own;
}

at::Tensor look_up(SegmentRun& run, const Vocabulary& vocabulary, const at::Tensor& ids) {
  const at::Tensor own = own_part(ids, vocabulary.parts, vocabulary.part, -1) - vocabulary.first;
  return engine::embedding(own.masked_fill(own.ge(vocabulary.words), -1), run.weight(vocabulary.table));
}

void add_loss(DecoderBuilder& builder, const Vocabulary& head, ValueId hidden, ValueId targets, int64_t chunk, double z) {
  const bool whole = head.parts > 1;  // the rank scores its tokens; else all tokens with its words
  // [2] with a z-loss: the sum of losses, and of squares.
  const engine::Shape shape = z > 0 ? engine::Shape{2} : engine::Shape{};
  const bool direct = !whole && z == 0;
  const ValueId loss = builder.program.value("loss", {}), scored = direct ? loss : builder.program.value("loss.partial", shape);
  builder.program.segment("loss", {hidden, targets}, {scored}, {head.table}, [=](SegmentRun& run) {
    dist::Group& tp = run.group("tp");
    const VocabularyPart part = whole ? VocabularyPart{} : VocabularyPart{&tp, head.first};
    const engine::CrossEntropy found = engine::linear_cross_entropy(
        run.read(hidden), own_part(run.read(targets), head.parts, head.part, kNotScored), run.weight(head.table), chunk, part, z);
    run.observe("token_loss", "tokens",
                [&] { return whole ? tp.all_reduce(found.token_loss, "token_loss").wait() : found.token_loss; });
    run.observe("logits", "tokens", [&] {  // of all words
      const at::Tensor own = kernels::to_math(engine::linear(run.read(hidden), run.weight(head.table)));
      if (whole) return own;
      std::vector<int64_t> words;
      for (const auto& count : tp.gather_counts({own.size(1)}, "logits.words")) words.push_back(count[0]);
      return tp.all_gather(own.t(), words, "logits").wait().t();
    });
    run.make(scored, z > 0 ? at::stack({found.sum, found.squares}) : found.sum);
  });
  ValueId sums = scored, squares;
  if (whole) sums = builder.program.exchange("loss.sum", engine::ExchangeKind::kAllReduce, "tp", scored);
  if (z > 0) squares = builder.program.value("z_loss", {});
  if (!direct) {
    std::vector<ValueId> makes{loss};
    if (z > 0) makes.push_back(squares);
    builder.program.segment("loss.total", {sums}, makes, {}, [=](SegmentRun& run) {
      const at::Tensor& both = run.read(sums);
      run.make(loss, z > 0 ? both[0].clone() : both.clone());
      if (z > 0) run.make(squares, both[1].clone());
    });
  }
  builder.program.loss({loss, "cross_entropy"});
  if (z > 0) builder.program.loss({squares, "z", engine::Loss::Per::kSupervisedTokens, z});
}

}  // namespace hyperparallel::models
