#include "train/training_state.h"

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint/convert.h"

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

checkpoint::Piece whole(const std::string& name, const at::Tensor& tensor) {
  return {name, tensor.sizes().vec(), std::vector<int64_t>(tensor.dim(), 0), tensor};
}

}  // namespace

checkpoint::Save save_of(Trainer& trainer) {
  checkpoint::Save save;
  const Progress& progress = trainer.progress();
  save.step = progress.step;
  save.lowest_val = progress.is_lowest;
  const engine::ParameterStore& parameters = *trainer.model().parameters;
  for (const engine::ParameterSpec& spec : parameters.specs())
    save.pieces.push_back(whole(spec.name, parameters.master(parameters.find(spec.name))));
  for (const optim::StateTensor& state : trainer.optimizer().state())
    save.pieces.push_back(whole(piece_name(state), state.value));
  save.documents[kProgressDocument] = nlohmann::json{
      {"step", progress.step},
      {"tokens", progress.tokens},
      {"skipped_steps", progress.skipped_steps},
      {"lowest_validation_loss",
       progress.lowest_validation_loss}}.dump(1);
  save.documents[kLoaderDocument] = trainer.loader().state().dump(1);
  save.documents[kConfigDocument] = to_yaml(trainer.config());
  save.documents[kModelDocument] = models::deepseek_v41::to_hf_json(trainer.config().model.architecture).dump(2);
  for (auto& [name, text] : checkpoint::read_companions(trainer.config().data.tokenizer.parent_path()))
    save.documents[name] = text;
  return save;
}

void restore(Trainer& trainer, const checkpoint::Checkpoint& checkpoint) {
  load_parameters(*trainer.model().parameters, checkpoint);
  std::vector<optim::StateTensor> state = trainer.optimizer().state();
  for (optim::StateTensor& entry : state) {
    const std::string name = piece_name(entry);
    if (!checkpoint.has(name))
      throw CheckpointError("{}: {} is missing; the optimizer of the configuration has it", checkpoint.folder().string(), name);
    entry.value = checkpoint.load(name);
  }
  trainer.optimizer().load_state(state);
  try {
    const nlohmann::json progress = nlohmann::json::parse(checkpoint.document(kProgressDocument));
    trainer.progress() = {progress.at("step"), progress.at("tokens"), progress.at("skipped_steps"),
                          progress.at("lowest_validation_loss"), false};
    trainer.loader().restore(nlohmann::json::parse(checkpoint.document(kLoaderDocument)));
  } catch (const nlohmann::json::exception& error) {
    throw CheckpointError("{}: {}", checkpoint.folder().string(), error.what());
  }
}

}  // namespace hyperparallel::train
