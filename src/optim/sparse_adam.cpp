#include "optim/sparse_adam.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "optim/chunks.h"
#include "optim/vector_kernels.h"

namespace hyperparallel::optim {

SparseAdam::SparseAdam(std::span<const OptimizedParameter> parameters, std::span<const ParameterSettings> settings,
                       const SparseAdamSettings& sparse, std::shared_ptr<dist::Group> group)
    : sparse_(sparse), group_(std::move(group)) {
  HP_CHECK(parameters.size() == settings.size(), "{} parameters, {} settings", parameters.size(), settings.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    HP_CHECK(parameters[i].table != nullptr, "`{}` is no table", parameters[i].name);
    HP_CHECK(settings[i].weight_decay == 0, "`{}`: SparseAdam has no weight decay", parameters[i].name);
    entries_.push_back(
        {parameters[i].name, settings[i], parameters[i].table->like(), parameters[i].table->like(), at::zeros({}, at::kLong)});
  }
}

void SparseAdam::update(const OptimizedParameter& parameter, Entry& entry, double lr, double coefficient) const {
  const int64_t hit = parameter.rows.size(0), width = parameter.table->width();
  const auto t = static_cast<double>(entry.step.item<int64_t>());
  AdamWFactors factors{coefficient, sparse_.beta1, sparse_.beta2, sparse_.eps};
  factors.step_size = lr * std::sqrt(1 - std::pow(sparse_.beta2, t)) / (1 - std::pow(sparse_.beta1, t));
  const at::Tensor table = parameter.table->begun(parameter.rows), exp_avg = entry.exp_avg->begun(parameter.rows),
                   exp_avg_sq = entry.exp_avg_sq->begun(parameter.rows);
  const int64_t* row = parameter.rows.const_data_ptr<int64_t>();
  const auto run = [&]<class T>(T*) {
    const T* gradient = parameter.gradient.const_data_ptr<T>();
    T *values = table.data_ptr<T>(), *first = exp_avg.data_ptr<T>(), *second = exp_avg_sq.data_ptr<T>();
    at::parallel_for(0, hit, std::max<int64_t>(1, 4096 / std::max<int64_t>(1, width)), [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t at = row[i] * width;
        adamw_update(factors, width, gradient + i * width, values + at, first + at, second + at);
      }
    });
  };
  parameter.table->type() == at::kDouble ? run(static_cast<double*>(nullptr)) : run(static_cast<float*>(nullptr));
}

void SparseAdam::step(std::span<const OptimizedParameter> parameters, double lr, double coefficient) {
  check_same(parameters, entries_);
  at::Tensor hits = at::zeros({static_cast<int64_t>(entries_.size())}, at::kLong);  // on all ranks
  for (size_t i = 0; i < parameters.size(); ++i) {
    check_parameter(parameters[i]);
    hits[static_cast<int64_t>(i)] = parameters[i].rows.size(0);
  }
  hits = group_->all_reduce(hits, "sparse_adam.hits").wait();
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (hits[static_cast<int64_t>(i)].item<int64_t>() == 0) continue;
    entries_[i].step.add_(1);
    update(parameters[i], entries_[i], lr * entries_[i].settings.lr_scale, coefficient);
  }
}

std::vector<StateTensor> SparseAdam::state() const {
  std::vector<StateTensor> tensors;
  for (const Entry& entry : entries_) {
    tensors.push_back({entry.name, "exp_avg", {}, entry.exp_avg.get()});
    tensors.push_back({entry.name, "exp_avg_sq", {}, entry.exp_avg_sq.get()});
    tensors.push_back({entry.name, "step", entry.step});
  }
  return tensors;
}

}  // namespace hyperparallel::optim
