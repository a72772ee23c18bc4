#include "optim/adamw.h"

#include <cmath>

#include "base/error.h"
#include "optim/chunks.h"
#include "optim/vector_kernels.h"

namespace hyperparallel::optim {
namespace {

template <class T>
void update_chunk(const OptimizedParameter& parameter, const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq,
                  const AdamWFactors& factors, const Chunk& chunk) {
  adamw_update(factors, chunk.size, parameter.gradient.const_data_ptr<T>() + chunk.begin,
               parameter.value.mutable_data_ptr<T>() + chunk.begin, exp_avg.mutable_data_ptr<T>() + chunk.begin,
               exp_avg_sq.mutable_data_ptr<T>() + chunk.begin);
}

}  // namespace

AdamW::AdamW(std::span<const OptimizedParameter> parameters, std::span<const ParameterSettings> settings,
             const AdamWSettings& adamw)
    : adamw_(adamw) {
  HP_CHECK(parameters.size() == settings.size(), "{} parameters, {} settings", parameters.size(), settings.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& value = parameters[i].value;
    HP_CHECK(value.scalar_type() == at::kFloat || value.scalar_type() == at::kDouble, "`{}` is {}, not FP32 or FP64",
             parameters[i].name, at::toString(value.scalar_type()));
    entries_.push_back({parameters[i].name, settings[i], at::zeros_like(value, value.options(), at::MemoryFormat::Contiguous),
                        at::zeros_like(value, value.options(), at::MemoryFormat::Contiguous), at::zeros({}, at::kLong)});
  }
}

void AdamW::step(std::span<const OptimizedParameter> parameters, double lr, double coefficient) {
  check_same(parameters, entries_);
  std::vector<AdamWFactors> factors(parameters.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    const OptimizedParameter& parameter = parameters[i];
    Entry& entry = entries_[i];
    if (!parameter.gradient.defined()) continue;
    check_parameter(parameter);
    const double t = static_cast<double>(++*entry.step.mutable_data_ptr<int64_t>());
    const double rate = lr * entry.settings.lr_scale;
    factors[i] = {.coefficient = coefficient,
                  .beta1 = adamw_.beta1,
                  .beta2 = adamw_.beta2,
                  .eps = adamw_.eps,
                  .decay = 1 - rate * entry.settings.weight_decay,
                  .step_size = rate / (1 - std::pow(adamw_.beta1, t)),
                  .root_scale = 1 / std::sqrt(1 - std::pow(adamw_.beta2, t))};
    parameter.value.unsafeGetTensorImpl()->bump_version();
  }
  for_each_chunk(chunks_of_gradients(parameters), [&](const Chunk& chunk, size_t) {
    const OptimizedParameter& parameter = parameters[chunk.tensor];
    const Entry& entry = entries_[chunk.tensor];
    if (parameter.value.scalar_type() == at::kFloat) {
      update_chunk<float>(parameter, entry.exp_avg, entry.exp_avg_sq, factors[chunk.tensor], chunk);
    } else {
      update_chunk<double>(parameter, entry.exp_avg, entry.exp_avg_sq, factors[chunk.tensor], chunk);
    }
  });
}

std::vector<StateTensor> AdamW::state() const {
  std::vector<StateTensor> tensors;
  for (const Entry& entry : entries_) {
    tensors.push_back({entry.name, "exp_avg", entry.exp_avg});
    tensors.push_back({entry.name, "exp_avg_sq", entry.exp_avg_sq});
    tensors.push_back({entry.name, "step", entry.step});
  }
  return tensors;
}

}  // namespace hyperparallel::optim
