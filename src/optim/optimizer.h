// What every optimizer of this project is: something that updates named FP32 master parameters in place and whose state can be
// saved and loaded as named tensors. AdamW (adamw.h) is one; groups.h decides which parameter goes to which.
#pragma once

#include "base/aten.h"

#include <span>
#include <string>
#include <vector>

#include "engine/row_table.h"

namespace hyperparallel::optim {

struct OptimizedParameter {
  std::string name;
  at::Tensor value;     // FP32 master (FP64 in tests), contiguous, updated in place
  at::Tensor gradient;  // same shape and dtype, contiguous; undefined = no gradient in this step
  // Of a table there is no `value`, and `gradient` [n, width] is that of the rows `rows`, int64 [n], each once, ascending.
  engine::RowTable* table = nullptr;
  at::Tensor rows = {};
};

// One tensor of an optimizer's state. It has the shape of its parameter, so that a checkpoint stores it under the same box, or no
// dimensions (step counts).
struct StateTensor {
  std::string parameter;  // the parameter that it belongs to
  std::string key;        // for example "exp_avg"
  at::Tensor value;
  engine::RowTable* table = nullptr;  // instead of `value`: of a table, of its size

  std::string name() const { return parameter + "." + key; }
};

class Optimizer {
 public:
  virtual ~Optimizer() = default;

  // One update with learning rate `lr` (before a group's lr_scale); every gradient is multiplied by `coefficient` (clip.h) on the
  // way. A parameter without gradient is not touched, decay included, and its step count stands still. `parameters` are those
  // that the optimizer was made for, in the same order.
  virtual void step(std::span<const OptimizedParameter> parameters, double lr, double coefficient) = 0;

  // The whole state, always the same names for the same parameters. The tensors alias the optimizer's own.
  virtual std::vector<StateTensor> state() const = 0;

  // Copies `state` in. Every name of state() must be there once, with its shape, and no other; else CheckpointError. Those with a
  // `table` are left out on both sides: whoever restores them writes into the tables of state() before.
  void load_state(std::span<const StateTensor> state);
  // The state is another one; load_state calls it.
  virtual void on_loaded() {}
};

}  // namespace hyperparallel::optim
