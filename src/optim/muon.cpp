#include "optim/muon.h"

#include <cmath>

#include "base/error.h"
#include "optim/chunks.h"

namespace hyperparallel::optim {

Muon::Muon(std::span<const OptimizedParameter> parameters, std::span<const ParameterSettings> settings, MuonSettings muon,
           std::vector<MatrixSource> sources, std::shared_ptr<dist::Group> group, StateMemory* memory)
    : muon_(std::move(muon)), exchange_(std::move(sources), std::move(group)) {
  HP_CHECK(parameters.size() == settings.size(), "{} parameters, {} settings", parameters.size(), settings.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor& value = parameters[i].value;
    entries_.push_back({parameters[i].name, settings[i], zeros_in(memory, value.sizes(), value.options())});
  }
}

void Muon::step(std::span<const OptimizedParameter> parameters, double lr, double coefficient) {
  check_same(parameters, entries_);
  std::vector<at::Tensor> local(parameters.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!parameters[i].gradient.defined()) continue;
    check_parameter(parameters[i]);
    at::Tensor& momentum = entries_[i].momentum;
    momentum.mul_(muon_.momentum).add_(parameters[i].gradient, coefficient);
    local[i] = (momentum * muon_.momentum).add_(parameters[i].gradient, coefficient);
  }
  const auto transform = [&](const at::Tensor& n) {
    const auto compute = n.scalar_type() == at::kDouble ? at::kDouble : muon_.compute;
    const double longest = static_cast<double>(std::max(n.size(1), n.size(2)));
    return newton_schulz(n, muon_.steps, muon_.eps, compute).mul_(muon_.update_scale * std::sqrt(longest));
  };
  const std::vector<at::Tensor> updates = exchange_.run(local, transform, "muon");
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (!updates[i].defined()) continue;
    const double rate = lr * entries_[i].settings.lr_scale;
    at::Tensor value = parameters[i].value;
    value.mul_(1 - rate * entries_[i].settings.weight_decay).sub_(updates[i], rate);
  }
}

std::vector<StateTensor> Muon::state() const {
  std::vector<StateTensor> tensors;
  for (const Entry& entry : entries_) tensors.push_back({entry.name, "momentum", entry.momentum});
  return tensors;
}

}  // namespace hyperparallel::optim
