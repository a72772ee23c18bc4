// The Sinkhorn-balanced update of tables (DeepSeek-V4.1 report, Algorithm 1): every row and every column of the update gets the
// same size, whatever the gradients of rare and frequent words are.
//   M = momentum M + (1 - momentum) G;  N = momentum M + (1 - momentum) G
//   U = N without the rows whose norm is at most threshold * (mean of the row norms);
//   U's rows, then columns, then rows ... are divided by (their norm + eps), `steps` times in all
//   W = W - update_scale * lr * sqrt(columns) * U
//
// NOTE [Scale vectors]: U is never formed. It is N with a factor for each row and one for each column; a division changes only
// these, and needs one pass that reads N. Ranks that own rows of a table add up the sum of the row norms once and the squares of
// the columns for each division of columns: vectors, whatever the size of the table. Tables share these sums.
// NOTE [Rows ever hit]: of a table whose gradients come by rows (engine/row_table.h), rows without momentum stand still whatever
// their scale, and add nothing to any sum. So the rule works on those that have some: its cost grows with the rows ever hit.
// A row or column of zeros has the factor 0: what it multiplies is zero anyway, and 1 / eps again and again would overflow.
#pragma once

#include <memory>

#include "dist/group.h"
#include "optim/groups.h"
#include "optim/optimizer.h"
#include "optim/state_memory.h"

namespace hyperparallel::optim {

struct SinkhornSettings {
  double momentum = 0.95;
  int steps = 11;  // divisions; rows first and, as it is odd, last
  double threshold = 1e-3;
  double eps = 1e-20;
  double update_scale = 0.18;
};

// Which rows of a table a rank has: those of the parameter, [rows, columns].
struct TableRows {
  int64_t all = 0;         // rows of the whole table that are rows of something; padding does not count
  bool is_primary = true;  // of the ranks with the same rows, one is: its rows count in sums
};

class Sinkhorn : public Optimizer {
 public:
  // Momenta are of the parameters' type, zero, in `memory` where it is given. `weight_decay` of the settings must be 0: the rule
  // has none.
  Sinkhorn(std::span<const OptimizedParameter> parameters, std::span<const ParameterSettings> settings,
           const SinkhornSettings& sinkhorn, std::vector<TableRows> rows, std::shared_ptr<dist::Group> group,
           StateMemory* memory = nullptr);

  // Every rank of the group calls it; a table has a gradient on all ranks or on none.
  void step(std::span<const OptimizedParameter> parameters, double lr, double coefficient) override;

  // Key: momentum.
  std::vector<StateTensor> state() const override;

  void on_loaded() override;

 private:
  struct Entry {
    std::string name;
    ParameterSettings settings;
    TableRows rows;
    at::Tensor momentum;
    // Of gradients by rows: instead of `momentum`, and the rows with a momentum that is not zero, ascending; undefined: not
    // known.
    std::unique_ptr<engine::RowTable> row_momentum;
    at::Tensor hit;  // int64
  };
  struct Balance;  // of one table, in one step
  Balance begin_dense(size_t index, const OptimizedParameter& parameter, double fresh);
  Balance begin_rows(size_t index, const OptimizedParameter& parameter, double fresh);
  static void move_rows(const OptimizedParameter& parameter, const Balance& table, double rate);
  void mask_rows(std::vector<Balance>& tables);
  void divide_rows(Balance& table) const;
  void divide_columns(std::vector<Balance>& tables);
  static void apply_factors(Balance& table);

  SinkhornSettings sinkhorn_;
  std::vector<Entry> entries_;
  std::shared_ptr<dist::Group> group_;
};

}  // namespace hyperparallel::optim
