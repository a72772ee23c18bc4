// Writes what a run is trained on, so that it can be looked at: one safetensors file for each of the first micro-batches.
//
// FOLDER/step-<step>-batch-<number within the step>.safetensors holds, for R rows of T tokens:
//   input_ids, labels, position_ids  int64 [R, T]; a label is the target of its own position, -100 where there is none
//   document_ids                     int64 [R, T]; documents count over the whole micro-batch, padding is -1
//   token_types                      int32 [R, T]; -1 text, 0 to 3 the parts of a picture
//   image_starts                     int64 [pictures]; index of each START token in the flattened rows
//   image.<i>                        float32 [patch rows, patch columns, 3 * patch * patch], normalised
// Its metadata `samples` is a JSON list of FILE:LINE in the order of the tokens.
#pragma once

#include <filesystem>

#include "train/trainer.h"

namespace hyperparallel::train {

class BatchDump : public TrainerCallback {
 public:
  // `batches`: of those that this process trains on, the first that are written. The folder is made when needed.
  BatchDump(std::filesystem::path folder, int64_t batches) : folder_(std::move(folder)), left_(batches) {}
  // Throws file::FileError.
  void on_batches(Trainer&, int64_t step, const std::vector<data::MicroBatch>& batches) override;

 private:
  std::filesystem::path folder_;
  int64_t left_;
};

}  // namespace hyperparallel::train
