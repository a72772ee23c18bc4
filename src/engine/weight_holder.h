// How autograd functions carry a Weight to their backward. Internal to weight.cpp and draft_scores.cpp.
#pragma once

#include <torch/csrc/autograd/custom_function.h>

#include "engine/weight.h"

namespace hyperparallel::engine {

// It holds no tensor of the weight itself.
struct WeightHolder : torch::CustomClassHolder {
  explicit WeightHolder(Weight weight) : store(weight.store), id(weight.id) {}
  ParameterStore* store;
  ParameterId id;
  at::Tensor value(at::ScalarType type) const { return store->compute(id).to(type); }
};

inline void save_weight(torch::autograd::AutogradContext* context, const Weight& weight) {
  context->saved_data["weight"] = c10::IValue::make_capsule(c10::make_intrusive<WeightHolder>(weight));
}

inline WeightHolder& saved_weight(torch::autograd::AutogradContext* context) {
  return static_cast<WeightHolder&>(*context->saved_data["weight"].toCapsule());
}

// The anchor of a frozen weight asks for nothing.
inline at::Tensor anchor_of(const Weight& weight) {
  return weight.trainable() ? weight.anchor : weight.anchor.detach();
}

}  // namespace hyperparallel::engine
