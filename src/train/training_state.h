// A run between two steps as a checkpoint, and back: parameters, optimizer, loader, progress. The random numbers of a run are
// pure functions of its seed, so they need no state.
#pragma once

#include "checkpoint/store.h"
#include "train/trainer.h"

namespace hyperparallel::train {

checkpoint::Save save_of(Trainer& trainer);
// Throws CheckpointError for tensors that are missing or do not fit, DataError where the data files changed.
// Of an imported checkpoint only the parameters are taken: the run is at its beginning.
void restore(Trainer& trainer, const checkpoint::Checkpoint& checkpoint);
// Settings of the run that saved it and of `config` that differ, one a line: "optimizer.lr: 0.0003 -> 0.001". What may change
// freely (steps, folders, intervals, layout) is left out.
std::vector<std::string> changed_settings(const checkpoint::Checkpoint& checkpoint, const Config& config);
// Made by `convert import`: weights without a run.
bool is_imported(const checkpoint::Checkpoint& checkpoint);

}  // namespace hyperparallel::train
