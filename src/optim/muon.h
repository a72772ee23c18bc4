// Muon with decoupled weight decay (DeepSeek-V4 report, Algorithm 1), for each matrix of a parameter alone:
//   M = momentum M + G;  N = momentum M + G;  X = newton_schulz(N)
//   W = W (1 - lr wd) - lr * update_scale * sqrt(max(rows, columns)) * X
// A parameter may be several matrices: the heads of a projection, the experts of a stack. A matrix is never taken in pieces:
// where ranks own parts of it, one of them gets it whole (matrix_exchange.h).
#pragma once

#include "optim/groups.h"
#include "optim/matrix_exchange.h"
#include "optim/newton_schulz.h"
#include "optim/optimizer.h"
#include "optim/state_memory.h"

namespace hyperparallel::optim {

struct MuonSettings {
  double momentum = 0.95;
  double eps = 1e-20;          // added to the norm
  double update_scale = 0.18;  // root mean square of an update of full rank
  NewtonSchulzSteps steps = deepseek_steps();
  at::ScalarType compute = at::kFloat;  // of the iteration: the parameters' type, or BF16 (an update errs by about 2 %)
};

class Muon : public Optimizer {
 public:
  // `sources[i]`: where parameter i lies on the ranks of `group`, and its matrices. Momenta are of the parameters' type, zero, in
  // `memory` where it is given.
  Muon(std::span<const OptimizedParameter> parameters, std::span<const ParameterSettings> settings, MuonSettings muon,
       std::vector<MatrixSource> sources, std::shared_ptr<dist::Group> group, StateMemory* memory = nullptr);

  // Every rank of the group calls it; a parameter has a gradient on all ranks or on none.
  void step(std::span<const OptimizedParameter> parameters, double lr, double coefficient) override;

  // Key: momentum.
  std::vector<StateTensor> state() const override;

  const std::vector<double>& work() const { return exchange_.work(); }  // by rank

 private:
  struct Entry {
    std::string name;
    ParameterSettings settings;
    at::Tensor momentum;
  };

  MuonSettings muon_;
  std::vector<Entry> entries_;
  MatrixExchange exchange_;
};

}  // namespace hyperparallel::optim
