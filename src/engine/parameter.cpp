#include "engine/parameter.h"

#include "base/error.h"
#include "base/random.h"

namespace hyperparallel::engine {

ParameterStore::ParameterStore(std::vector<ParameterSpec> specs, at::ScalarType master, at::ScalarType compute)
    : specs_(std::move(specs)),
      master_type_(master),
      compute_type_(compute),
      computes_(specs_.size()),
      gradients_(specs_.size()) {
  masters_.reserve(specs_.size());
  for (size_t i = 0; i < specs_.size(); ++i) {
    const bool is_new = by_name_.emplace(specs_[i].name, ParameterId{static_cast<int32_t>(i)}).second;
    HP_CHECK(is_new, "two parameters are called {}", specs_[i].name);
    masters_.push_back(at::zeros(specs_[i].shape, at::TensorOptions().dtype(master)));
    trainable_.push_back(specs_[i].use != ParameterUse::kState);
  }
}

void ParameterStore::initialise(uint64_t seed) {
  for (size_t i = 0; i < specs_.size(); ++i) {
    const Initialiser& rule = specs_[i].initialiser;
    at::Tensor& master = masters_[i];
    if (rule.kind == Initialiser::Kind::kConstant) {
      master.fill_(rule.constant);
    } else if (rule.kind == Initialiser::Kind::kValues) {
      HP_CHECK(static_cast<int64_t>(rule.values.size()) == master.numel(), "{}: {} start values for {} elements", specs_[i].name,
               rule.values.size(), master.numel());
      master.copy_(at::tensor(rule.values, at::kDouble).view(master.sizes()));
    } else {
      at::Tensor values = at::empty(master.sizes(), at::kFloat);
      fill_normal(values.mutable_data_ptr<float>(), values.numel(), seed, specs_[i].name, 0, rule.std);
      master.copy_(values);
    }
  }
  masters_changed();
}

ParameterId ParameterStore::find(const std::string& name) const {
  auto it = by_name_.find(name);
  HP_CHECK(it != by_name_.end(), "no parameter is called {}", name);
  return it->second;
}

at::ScalarType ParameterStore::compute_type_of(ParameterId id) const {
  return spec(id).keep_master_type ? master_type_ : compute_type_;
}

void ParameterStore::masters_changed() {
  for (at::Tensor& copy : computes_) copy = at::Tensor();
}

void ParameterStore::gather(ParameterId id) {
  at::Tensor& copy = computes_[id.index];
  if (!copy.defined()) copy = master(id).to(compute_type_of(id));
}

void ParameterStore::release(ParameterId id) {
  computes_[id.index] = at::Tensor();
}

const at::Tensor& ParameterStore::compute(ParameterId id) const {
  const at::Tensor& copy = computes_[id.index];
  HP_CHECK(copy.defined(), "{} is used while its unit is not gathered", spec(id).name);
  return copy;
}

at::Tensor& ParameterStore::gradient_or_zeros(ParameterId id) {
  at::Tensor& slot = gradients_[id.index];
  if (!slot.defined()) slot = at::zeros(spec(id).shape, at::TensorOptions().dtype(master_type_));
  return slot;
}

void ParameterStore::add_gradient(ParameterId id, const at::Tensor& gradient) {
  gradient_or_zeros(id).add_(gradient);
}

void ParameterStore::clear_gradients() {
  for (at::Tensor& slot : gradients_) slot = at::Tensor();
}

std::vector<at::Tensor> ParameterStore::gradients_and_copies() const {
  std::vector<at::Tensor> tensors;
  for (size_t i = 0; i < specs_.size(); ++i) {
    if (gradients_[i].defined()) tensors.push_back(gradients_[i]);
    if (computes_[i].defined() && !computes_[i].is_alias_of(masters_[i])) tensors.push_back(computes_[i]);
  }
  return tensors;
}

}  // namespace hyperparallel::engine
