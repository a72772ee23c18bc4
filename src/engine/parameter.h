// Parameters: what a program owns between steps. Each has a master copy that the optimizer updates, a compute copy that segments
// use, and a gradient slot that backward adds into.
#pragma once

#include <ATen/ATen.h>

#include <map>
#include <string>
#include <vector>

#include "engine/value.h"

namespace hyperparallel::engine {

// How a parameter enters a segment.
enum class ParameterUse {
  kWeight,  // through linear, grouped_linear, embedding and so on (engine/weight.h), which add its gradient straight into the
            // slot
  kLeaf,    // as a plain tensor of the segment's graph: gains, biases, sinks, mHC coefficients
  kState,   // read only, never differentiated: router biases
};

// Start values, spec: design of initialisation. normal draws from the counter generator keyed by (seed, name, element index).
struct Initialiser {
  enum class Kind { kNormal, kConstant, kValues } kind = Kind::kNormal;
  double std = 0.02;
  double constant = 0.0;
  std::vector<double> values;  // kValues: the whole parameter, row-major
  static Initialiser normal(double std) { return {Kind::kNormal, std, 0.0, {}}; }
  static Initialiser fill(double constant) { return {Kind::kConstant, 0.0, constant, {}}; }
  static Initialiser from(std::vector<double> values) { return {Kind::kValues, 0.0, 0.0, std::move(values)}; }
};

struct ParameterSpec {
  std::string name;  // released name; stacked experts are `...ffn.experts.w1.weight` [experts, out, in]
  std::vector<int64_t> shape;
  ParameterUse use = ParameterUse::kWeight;
  bool keep_master_type = false;  // computes in the master type even when segments compute in BF16 (mHC, sinks, router biases)
  Initialiser initialiser;
};

// The tensors of all parameters of one program.
class ParameterStore {
 public:
  // `master`: FP32, or FP64 for reference runs. `compute`: the type of the compute copies; BF16 or the master type.
  ParameterStore(std::vector<ParameterSpec> specs, at::ScalarType master, at::ScalarType compute);

  // Fills every parameter from its initialiser. The bits depend on seed, name and element index alone.
  void initialise(uint64_t seed);

  size_t size() const { return specs_.size(); }
  const ParameterSpec& spec(ParameterId id) const { return specs_[id.index]; }
  const std::vector<ParameterSpec>& specs() const { return specs_; }
  // Throws InternalError for an unknown name.
  ParameterId find(const std::string& name) const;
  bool has(const std::string& name) const { return by_name_.contains(name); }

  at::ScalarType master_type() const { return master_type_; }
  at::ScalarType compute_type() const { return compute_type_; }

  // The master tensor; the optimizer writes it in place, then calls `masters_changed`.
  at::Tensor& master(ParameterId id) { return masters_[id.index]; }
  const at::Tensor& master(ParameterId id) const { return masters_[id.index]; }
  void masters_changed();  // drops the compute copies: the next gather makes them anew

  // Compute copies live between gather and release; without a cast the copy is the master itself.
  void gather(ParameterId id);
  void release(ParameterId id);
  const at::Tensor& compute(ParameterId id) const;

  // Gradient slot in the master type. Undefined until backward first adds to it.
  at::Tensor& gradient(ParameterId id) { return gradients_[id.index]; }
  // The slot, made of zeros when nothing was added yet.
  at::Tensor& gradient_or_zeros(ParameterId id);
  void add_gradient(ParameterId id, const at::Tensor& gradient);  // any floating type, the parameter's shape
  void clear_gradients();

  // What a step adds to the masters: gradient slots, and compute copies that are not the master itself.
  std::vector<at::Tensor> gradients_and_copies() const;

  // A parameter that is not trainable gets no gradient, hence takes part in neither norm, update nor decay.
  bool trainable(ParameterId id) const { return trainable_[id.index]; }
  void set_trainable(ParameterId id, bool trainable) { trainable_[id.index] = trainable; }

 private:
  at::ScalarType compute_type_of(ParameterId id) const;

  std::vector<ParameterSpec> specs_;
  std::map<std::string, ParameterId> by_name_;
  at::ScalarType master_type_;
  at::ScalarType compute_type_;
  std::vector<at::Tensor> masters_, computes_, gradients_;
  std::vector<bool> trainable_;
};

}  // namespace hyperparallel::engine
