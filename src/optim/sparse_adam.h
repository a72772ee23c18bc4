// Adam for a table of which a step hits few rows: those alone are read and written, whatever the size of the table.
//   m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2;  row -= lr sqrt(1 - b2^t) / (1 - b1^t) * m / (sqrt(v) + eps)
// eps is added to the uncorrected root. Rows that are not hit keep row, m and v bit for bit; there is no decay. t is one counter
// for the table, and stands still in a step that hits no row: torch.optim.SparseAdam.
#pragma once

#include <memory>

#include "dist/group.h"
#include "optim/groups.h"
#include "optim/optimizer.h"

namespace hyperparallel::optim {

struct SparseAdamSettings {
  double beta1 = 0.9, beta2 = 0.999, eps = 1e-8;
};

class SparseAdam : public Optimizer {
 public:
  // Tables alone. Moments are zero, and lie where the tables lie. `weight_decay` of the settings must be 0. Ranks of the group
  // own different rows.
  SparseAdam(std::span<const OptimizedParameter> parameters, std::span<const ParameterSettings> settings,
             const SparseAdamSettings& sparse, std::shared_ptr<dist::Group> group);

  // Every rank of the group calls it.
  void step(std::span<const OptimizedParameter> parameters, double lr, double coefficient) override;

  // Keys: exp_avg and exp_avg_sq (tables), step (I64, no dimensions; the same on all ranks).
  std::vector<StateTensor> state() const override;

 private:
  struct Entry {
    std::string name;
    ParameterSettings settings;
    std::unique_ptr<engine::RowTable> exp_avg, exp_avg_sq;
    at::Tensor step;
  };
  void update(const OptimizedParameter& parameter, Entry& entry, double lr, double coefficient) const;

  SparseAdamSettings sparse_;
  std::vector<Entry> entries_;
  std::shared_ptr<dist::Group> group_;
};

}  // namespace hyperparallel::optim
