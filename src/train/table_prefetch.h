// Rows of tables in mapped files (ParameterUse::kTable, model.engram_storage: mmap) on their way into memory before a micro-batch
// asks for them: while one computes, the system reads what the next ones of the step will use.
#pragma once

#include <map>
#include <thread>
#include <vector>

#include "optim/optimizer.h"
#include "train/run_model.h"

namespace hyperparallel::train {

class TablePrefetch {
 public:
  // `stage`: all ranks that own rows. `state`: the optimizer's, whose rows are needed in the same step. All must outlive it.
  TablePrefetch(const RunModel& model, const std::vector<optim::StateTensor>& state, dist::Group& stage);

  // Before the step whose micro-batches these are. Ranks tell each other which rows they will ask for: all call it.
  void begin(const std::vector<engine::ValueMap>& inputs);

 private:
  const RunModel& model_;
  std::map<int32_t, std::vector<const engine::RowTable*>> tables_;  // by parameter: its own, and those of its state
  dist::Group& stage_;
  std::jthread reader_;
};

}  // namespace hyperparallel::train
