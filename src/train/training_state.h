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
// Tells on the first rank that so many parameters were not in `source` and begin anew, where any are.
void note_fresh(const Trainer& trainer, int64_t parameters, const std::filesystem::path& source);
// Settings of the run that saved it and of `config` that differ, one a line: "optimizer.lr: 0.0003 -> 0.001". What may change
// freely (steps, folders, intervals, layout) is left out.
std::vector<std::string> changed_settings(const checkpoint::Checkpoint& checkpoint, const Config& config);
// Made by `convert import`: weights without a run.
bool is_imported(const checkpoint::Checkpoint& checkpoint);

}  // namespace hyperparallel::train
