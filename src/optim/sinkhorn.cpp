#include "optim/sinkhorn.h"

#include <ATen/ops/mv.h>
#include <ATen/ops/searchsorted.h>

#include <cmath>

#include "base/error.h"
#include "kernels/rows/op.h"
#include "optim/chunks.h"

namespace hyperparallel::optim {
namespace {

constexpr int64_t kRowsAtOnce = 4096;

// Calls body(first, count) for stretches of rows.
template <class Body>
void for_rows(const at::Tensor& table, const Body& body) {
  for (int64_t first = 0; first < table.size(0); first += kRowsAtOnce) body(first, std::min(kRowsAtOnce, table.size(0) - first));
}

}  // namespace

struct Sinkhorn::Balance {
  size_t index;  // of the parameter
  const Entry* entry;
  at::Tensor n;       // [rows, columns]; divided by the mean row norm, which changes no ratio
  at::Tensor row;     // [rows], factors of U
  at::Tensor column;  // [columns]
  at::Tensor hit;     // of gradients by rows: the numbers of the rows, int64 [rows]
};

namespace {

// factor / (norm + eps); 0 where the norm is.
at::Tensor divided(const at::Tensor& factor, const at::Tensor& norm, double eps) {
  return (factor / (norm + eps)).masked_fill_(norm.eq(0), 0);
}

}  // namespace

Sinkhorn::Sinkhorn(std::span<const OptimizedParameter> parameters, std::span<const ParameterSettings> settings,
                   const SinkhornSettings& sinkhorn, std::vector<TableRows> rows, std::shared_ptr<dist::Group> group,
                   StateMemory* memory)
    : sinkhorn_(sinkhorn), group_(std::move(group)) {
  HP_CHECK(parameters.size() == settings.size() && parameters.size() == rows.size(), "{} parameters, {} settings, {} tables",
           parameters.size(), settings.size(), rows.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& value = parameters[i].value;
    HP_CHECK(settings[i].weight_decay == 0, "`{}`: the Sinkhorn-balanced update has no weight decay", parameters[i].name);
    Entry entry{parameters[i].name, settings[i], rows[i], {}, nullptr, {}};
    if (parameters[i].table != nullptr) {
      entry.row_momentum = parameters[i].table->like();
    } else {
      HP_CHECK(value.dim() == 2, "`{}` has {} dimensions and is no table", parameters[i].name, value.dim());
      entry.momentum = zeros_in(memory, value.sizes(), value.options());
    }
    entries_.push_back(std::move(entry));
  }
}

// Between divisions, so that many of them leave the factors finite.
void Sinkhorn::apply_factors(Balance& table) {
  for_rows(table.n, [&](int64_t first, int64_t count) {
    at::Tensor row = table.row.narrow(0, first, count);
    table.n.narrow(0, first, count).mul_(row.unsqueeze(1)).mul_(table.column);
    row.fill_(1);
  });
  table.column.fill_(1);
}

// Row norms, their mean over all rows of all ranks, and the rows that are left out.
void Sinkhorn::mask_rows(std::vector<Balance>& tables) {
  at::Tensor sums = at::zeros({static_cast<int64_t>(tables.size())}, at::kDouble);
  std::vector<at::Tensor> norms;
  for (size_t t = 0; t < tables.size(); ++t) {
    const at::Tensor& n = tables[t].n;
    at::Tensor norm = at::empty({n.size(0)}, n.options());
    for_rows(n, [&](int64_t first, int64_t count) {
      norm.narrow(0, first, count).copy_(n.narrow(0, first, count).square().sum(1).sqrt());
    });
    if (tables[t].entry->rows.is_primary) sums[static_cast<int64_t>(t)] = norm.sum(at::kDouble);
    norms.push_back(norm);
  }
  sums = group_->all_reduce(sums, "sinkhorn.row_norms").wait();
  for (size_t t = 0; t < tables.size(); ++t) {
    Balance& table = tables[t];
    const double mean = sums[static_cast<int64_t>(t)].item<double>() / static_cast<double>(table.entry->rows.all);
    table.row = (norms[t] > sinkhorn_.threshold * mean).to(table.n.scalar_type());
    table.column = at::ones({table.n.size(1)}, table.n.options());
    if (mean > 0) table.n.div_(mean);
  }
}

void Sinkhorn::divide_rows(Balance& table) const {
  const at::Tensor squares = table.column.square();
  for_rows(table.n, [&](int64_t first, int64_t count) {
    at::Tensor row = table.row.narrow(0, first, count);
    const at::Tensor norm = at::mv(table.n.narrow(0, first, count).square(), squares).sqrt_().mul_(row);
    row.copy_(divided(row, norm, sinkhorn_.eps));
  });
}

void Sinkhorn::divide_columns(std::vector<Balance>& tables) {
  std::vector<at::Tensor> parts;
  for (const Balance& table : tables) {
    at::Tensor sum = at::zeros({table.n.size(1)}, at::kDouble);
    if (table.entry->rows.is_primary) {
      for_rows(table.n, [&](int64_t first, int64_t count) {
        const at::Tensor squares = table.row.narrow(0, first, count).square();
        sum.add_(at::mv(table.n.narrow(0, first, count).square().t(), squares));
      });
    }
    parts.push_back(sum);
  }
  const at::Tensor sums = group_->all_reduce(at::cat(parts), "sinkhorn.columns").wait();
  int64_t first = 0;
  for (Balance& table : tables) {
    const int64_t columns = table.n.size(1);
    const at::Tensor norm = sums.narrow(0, first, columns).sqrt().to(table.n.scalar_type()).mul_(table.column);
    table.column = divided(table.column, norm, sinkhorn_.eps);
    first += columns;
  }
}

Sinkhorn::Balance Sinkhorn::begin_dense(size_t index, const OptimizedParameter& parameter, double fresh) {
  at::Tensor& momentum = entries_[index].momentum;
  momentum.mul_(sinkhorn_.momentum).add_(parameter.gradient, fresh);
  return {index, &entries_[index], (momentum * sinkhorn_.momentum).add_(parameter.gradient, fresh), {}, {}, {}};
}

Sinkhorn::Balance Sinkhorn::begin_rows(size_t index, const OptimizedParameter& parameter, double fresh) {
  Entry& entry = entries_[index];
  if (!entry.hit.defined()) entry.hit = at::tensor(entry.row_momentum->rows_that_differ_from_zero(), at::kLong);
  const at::Tensor hit = std::get<0>(at::_unique(at::cat({entry.hit, parameter.rows})));  // sorted
  at::Tensor gradient = at::zeros({hit.size(0), parameter.table->width()}, parameter.gradient.options());
  gradient.index_copy_(0, at::searchsorted(hit, parameter.rows), parameter.gradient);
  const at::Tensor momentum = entry.row_momentum->look_up(hit).mul_(sinkhorn_.momentum).add_(gradient, fresh);
  entry.row_momentum->begun(hit).index_copy_(0, hit, momentum);
  entry.hit = hit.index_select(0, momentum.ne(0).any(1).nonzero().flatten());
  return {index, &entry, (momentum * sinkhorn_.momentum).add_(gradient, fresh), {}, {}, hit};
}

// W -= rate * U, of the rows of the balance.
void Sinkhorn::move_rows(const OptimizedParameter& parameter, const Balance& table, double rate) {
  at::Tensor value = table.hit.defined() ? parameter.table->begun(table.hit) : parameter.value;
  for_rows(table.n, [&](int64_t first, int64_t count) {
    const at::Tensor update = table.n.narrow(0, first, count) * table.row.narrow(0, first, count).unsqueeze(1) * table.column;
    if (table.hit.defined()) {
      kernels::scatter_add_rows(value, table.hit.narrow(0, first, count), update.mul_(-rate));
    } else {
      value.narrow(0, first, count).sub_(update, rate);
    }
  });
}

void Sinkhorn::step(std::span<const OptimizedParameter> parameters, double lr, double coefficient) {
  check_same(parameters, entries_);
  const double fresh = (1 - sinkhorn_.momentum) * coefficient;
  std::vector<Balance> tables;
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].gradient.defined()) continue;
    check_parameter(parameters[i]);
    tables.push_back(parameters[i].table != nullptr ? begin_rows(i, parameters[i], fresh) : begin_dense(i, parameters[i], fresh));
  }
  if (tables.empty()) return;
  mask_rows(tables);
  constexpr int kDivisions = 16;  // that FP32 factors bear
  for (int k = 1; k <= sinkhorn_.steps; ++k) {
    if (k > 1 && k % kDivisions == 1) {
      for (Balance& table : tables) apply_factors(table);
    }
    if (k % 2 == 0) {
      divide_columns(tables);
    } else {
      for (Balance& table : tables) divide_rows(table);
    }
  }
  for (Balance& table : tables) {
    const double rate =
        sinkhorn_.update_scale * lr * table.entry->settings.lr_scale * std::sqrt(static_cast<double>(table.n.size(1)));
    move_rows(parameters[table.index], table, rate);
  }
}

void Sinkhorn::on_loaded() {
  for (Entry& entry : entries_) entry.hit = at::Tensor();
}

std::vector<StateTensor> Sinkhorn::state() const {
  std::vector<StateTensor> tensors;
  for (const Entry& entry : entries_) tensors.push_back({entry.name, "momentum", entry.momentum, entry.row_momentum.get()});
  return tensors;
}

}  // namespace hyperparallel::optim
