#include "train/training_state.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/log.h"
#include "base/yaml.h"
#include "checkpoint/convert.h"
#include "checkpoint/hf_names.h"

namespace hyperparallel::train {
namespace {

constexpr const char* kProgressDocument = "progress.json";
constexpr const char* kLoaderDocument = "loader.json";
constexpr const char* kConfigDocument = "config.yaml";
constexpr const char* kModelDocument = "config.json";

// A name with a slash is no tensor of the model (checkpoint/convert.h).
std::string piece_name(const optim::StateTensor& state) {
  return "optimizer/" + state.key + "/" + state.parameter;
}

checkpoint::RowSource source_of(const engine::RowTable& table) {
  return {{table.rows(), table.width()}, table.type(), [&table](const checkpoint::Take& take) {
            table.for_pieces([&](int64_t, const at::Tensor& rows) { take(rows); });
          }};
}

// The part of a parameter, or of a tensor of its shape, that this rank saves; nothing where another rank does. `table` instead
// of `tensor` where it is one.
void add_owned(checkpoint::Save& save, const Trainer& trainer, engine::ParameterId id, const std::string& name,
               const at::Tensor& tensor, const engine::RowTable* table) {
  const engine::ParameterStore& parameters = *trainer.model().parameters;
  const engine::ParameterSpec& spec = parameters.spec(id);
  const Box& owned = parameters.placement(id).owned;
  if (!trainer.ranks().layout.is_primary(spec)) return;
  if (table != nullptr) {
    if (table->rows() > 0) save.pieces.push_back({name, spec.shape, owned.offset, {}, source_of(*table)});
    return;
  }
  if (tensor.numel() == 0) return;
  if (tensor.dim() > 0) {
    save.pieces.push_back({name, spec.shape, owned.offset, tensor});
  } else if (std::ranges::all_of(owned.offset, [](int64_t offset) { return offset == 0; }) && volume(owned.size) > 0) {
    save.pieces.push_back({name, {}, {}, tensor});  // a count that is the same for all rows: from the owner of the first
  }
}

}  // namespace

checkpoint::Save save_of(Trainer& trainer) {
  checkpoint::Save save;
  const Progress& progress = trainer.progress();
  save.step = progress.step;
  save.lowest_val = progress.is_lowest;
  const engine::ParameterStore& parameters = *trainer.model().parameters;
  for (const engine::ParameterSpec& spec : parameters.specs()) {
    const engine::ParameterId id = parameters.find(spec.name);
    const bool is_table = parameters.is_table(id);
    add_owned(save, trainer, id, spec.name, is_table ? at::Tensor() : parameters.master(id),
              is_table ? &parameters.table(id) : nullptr);
  }
  for (const optim::StateTensor& state : trainer.optimizer().state())
    add_owned(save, trainer, parameters.find(state.parameter), piece_name(state), state.value, state.table);
  if (!trainer.ranks().is_first()) return save;  // the documents come from one rank
  save.documents[kProgressDocument] = nlohmann::json{
      {"step", progress.step},
      {"tokens", progress.tokens},
      {"skipped_steps", progress.skipped_steps},
      {"lowest_validation_loss",
       progress.lowest_validation_loss}}.dump(1);
  save.documents[kLoaderDocument] = trainer.loader().state().dump(1);
  save.documents[kConfigDocument] = to_yaml(trainer.config());
  save.documents[kModelDocument] = trainer.config().model.architecture->config_json().dump(2);
  for (auto& [name, text] : checkpoint::read_companions(trainer.config().data.tokenizer.parent_path()))
    save.documents[name] = text;
  return save;
}

namespace {

// The scalars of a document by dotted key, lists and nothing as one text.
void flatten(const yaml::Node& node, std::map<std::string, std::string>& into) {
  if (node.kind == yaml::Node::Kind::kMap) {
    for (const auto& [name, child] : node.entries) flatten(child, into);
    return;
  }
  std::string text = node.text;
  for (const yaml::Node& item : node.items) {
    std::map<std::string, std::string> parts;
    flatten(item, parts);
    for (const auto& [key, part] : parts) text += (text.empty() ? "" : ", ") + part;
  }
  into[node.key] = text;
}

std::map<std::string, std::string> flat(const std::string& text) {
  Problems problems;
  std::map<std::string, std::string> values;
  flatten(yaml::parse_yaml(text, kConfigDocument, problems), values);
  return values;
}

}  // namespace

std::vector<std::string> changed_settings(const checkpoint::Checkpoint& checkpoint, const Config& config) {
  const auto before = flat(checkpoint.document(kConfigDocument)), now = flat(to_yaml(config));
  std::vector<std::string> changes;
  for (const auto& [key, value] : now) {
    const auto old = before.find(key);
    if (old == before.end() || old->second == value) continue;  // a key that the other version did not have
    const bool matters = key.starts_with("model.") || key.starts_with("data.") || key.starts_with("optimizer.") ||
                         key.starts_with("train.loss.") || key == "train.seed" || key == "train.dtype" ||
                         key == "train.global_batch_size" || key.starts_with("train.batch_ramp") ||
                         key.starts_with("train.length_ramp");
    if (matters && key != "data.workers") changes.push_back(fmt::format("{}: {} -> {}", key, old->second, value));
  }
  return changes;
}

bool is_imported(const checkpoint::Checkpoint& checkpoint) {
  return !checkpoint.has_document(kProgressDocument);
}

namespace {

// A parameter whose rule is another one now, or that did not learn before, begins with a fresh state.
void restore_optimizer(Trainer& trainer, const checkpoint::Checkpoint& checkpoint) {
  std::vector<optim::StateTensor> state = trainer.optimizer().state();
  const engine::ParameterStore& parameters = *trainer.model().parameters;
  std::set<std::string> fresh;
  for (optim::StateTensor& entry : state) {
    const std::string name = piece_name(entry);
    if (!checkpoint.has(name)) {
      fresh.insert(entry.parameter);
      continue;
    }
    const Box& owned = parameters.placement(parameters.find(entry.parameter)).owned;
    if (entry.table != nullptr) {
      entry.table->fill([&](int64_t first, int64_t count) {
        return checkpoint.load_box(name, {owned.offset[0] + first, owned.offset[1]}, {count, owned.size[1]});
      });
      continue;
    }
    const bool whole = entry.value.dim() == 0 || owned.size == parameters.spec(parameters.find(entry.parameter)).shape;
    entry.value = whole ? checkpoint.load(name) : checkpoint.load_box(name, owned.offset, owned.size);
  }
  trainer.optimizer().load_state(state);
  if (!fresh.empty() && trainer.ranks().is_first())
    log::warn("{} parameters had another update rule in the checkpoint or none, and begin with a fresh state, for example {}",
              fresh.size(), *fresh.begin());
}

}  // namespace

void note_fresh(const Trainer& trainer, int64_t parameters, const std::filesystem::path& source) {
  if (parameters > 0 && trainer.ranks().is_first())
    log::info("{} holds no draft layers: their {} parameters begin as the configuration initialises them", source.string(),
              parameters);
}

void restore(Trainer& trainer, const checkpoint::Checkpoint& checkpoint) {
  note_fresh(trainer, load_parameters(*trainer.model().parameters, checkpoint), checkpoint.folder());
  if (is_imported(checkpoint)) return;
  restore_optimizer(trainer, checkpoint);
  try {
    const nlohmann::json progress = nlohmann::json::parse(checkpoint.document(kProgressDocument));
    trainer.progress() = {progress.at("step"), progress.at("tokens"), progress.at("skipped_steps"),
                          progress.at("lowest_validation_loss"), false};
    trainer.loader().set_seq_len(trainer.config().seq_len(trainer.progress().step));
    trainer.loader().restore(nlohmann::json::parse(checkpoint.document(kLoaderDocument)));
  } catch (const nlohmann::json::exception& error) {
    throw CheckpointError("{}: {}", checkpoint.folder().string(), error.what());
  }
}

}  // namespace hyperparallel::train
