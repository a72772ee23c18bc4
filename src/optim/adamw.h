// AdamW with decoupled weight decay (Loshchilov and Hutter), in one pass over each tensor:
//   g' = coefficient * g
//   m  = b1 m + (1 - b1) g'
//   v  = b2 v + (1 - b2) g'^2
//   w  = w (1 - lr wd) - lr / (1 - b1^t) * m / (sqrt(v) / sqrt(1 - b2^t) + eps)
// lr is the step's rate times the parameter's lr_scale; t is the parameter's own count of steps with a gradient.
// Bits depend neither on the thread count nor on how a tensor is sharded: every element is computed alone.
#pragma once

#include "optim/groups.h"
#include "optim/optimizer.h"
#include "optim/state_memory.h"

namespace hyperparallel::optim {

struct AdamWSettings {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double eps = 1e-20;
  // Of the stored moments: FP32, or BF16, half the memory: each is off by up to 2^-9 of its value, an update by about as much.
  // Parameters in FP64 have FP64 moments.
  at::ScalarType moments = at::kFloat;
};

class AdamW : public Optimizer {
 public:
  // Moments are zero, in `memory` where it is given; parameters FP32 or FP64. `settings` has an entry for each parameter.
  AdamW(std::span<const OptimizedParameter> parameters, std::span<const ParameterSettings> settings, const AdamWSettings& adamw,
        StateMemory* memory = nullptr);

  void step(std::span<const OptimizedParameter> parameters, double lr, double coefficient) override;

  // Keys: exp_avg and exp_avg_sq (shape of the parameter), step (I64, no dimensions).
  std::vector<StateTensor> state() const override;

 private:
  struct Entry {
    std::string name;
    ParameterSettings settings;
    at::Tensor exp_avg, exp_avg_sq;
    at::Tensor step;  // I64, no dimensions
  };

  AdamWSettings adamw_;
  std::vector<Entry> entries_;
};

}  // namespace hyperparallel::optim
