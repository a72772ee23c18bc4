#include "optim/adamw.h"

#include <cmath>

#include "base/error.h"
#include "optim/chunks.h"
#include "optim/vector_kernels.h"

namespace hyperparallel::optim {
namespace {

template <class T, class Moment>
void update_chunk(const OptimizedParameter& parameter, const at::Tensor& exp_avg, const at::Tensor& exp_avg_sq,
                  const AdamWFactors& factors, const Chunk& chunk) {
  const auto moments = [&](const at::Tensor& tensor) { return static_cast<Moment*>(tensor.mutable_data_ptr()) + chunk.begin; };
  adamw_update(factors, chunk.size, parameter.gradient.const_data_ptr<T>() + chunk.begin,
               parameter.value.mutable_data_ptr<T>() + chunk.begin, moments(exp_avg), moments(exp_avg_sq));
}

}  // namespace

AdamW::AdamW(std::span<const OptimizedParameter> parameters, std::span<const ParameterSettings> settings,
             const AdamWSettings& adamw, StateMemory* memory)
    : adamw_(adamw) {
  HP_CHECK(parameters.size() == settings.size(), "{} parameters, {} settings", parameters.size(), settings.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& value = parameters[i].value;
    HP_CHECK(value.scalar_type() == at::kFloat || value.scalar_type() == at::kDouble, "`{}` is {}, not FP32 or FP64",
             parameters[i].name, at::toString(value.scalar_type()));
    const auto moments = value.options().dtype(value.scalar_type() == at::kDouble ? at::kDouble : adamw.moments);
    entries_.push_back({parameters[i].name, settings[i], zeros_in(memory, value.sizes(), moments),
                        zeros_in(memory, value.sizes(), moments), at::zeros({}, at::kLong)});
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
    const AdamWFactors& own = factors[chunk.tensor];
    if (entry.exp_avg.scalar_type() == at::kBFloat16) {
      update_chunk<float, uint16_t>(parameter, entry.exp_avg, entry.exp_avg_sq, own, chunk);
    } else if (parameter.value.scalar_type() == at::kFloat) {
      update_chunk<float, float>(parameter, entry.exp_avg, entry.exp_avg_sq, own, chunk);
    } else {
      update_chunk<double, double>(parameter, entry.exp_avg, entry.exp_avg_sq, own, chunk);
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
