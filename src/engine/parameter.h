// Parameters: what a program owns between steps. Segments use a compute copy of the rank's part of a parameter, and backward adds
// into a slot of the same shape. The optimizer updates the master of those rows that the rank owns (engine/layout.h), by the sum
// of the ranks' slots over these rows. On one rank part, owned rows and the whole parameter are the same.
#pragma once

#include "base/aten.h"

#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "engine/layout.h"
#include "engine/row_table.h"
#include "engine/value.h"

namespace hyperparallel::engine {

// How a parameter enters a segment.
enum class ParameterUse {
  kWeight,  // through linear, grouped_linear, embedding and so on (engine/weight.h), which add its gradient straight into the
            // slot
  kLeaf,    // as a plain tensor of the segment's graph: gains, biases, sinks, mHC coefficients
  kState,   // read only, never differentiated: router biases
  kTable,   // rows looked up by number where they lie (engine/row_table.h): cut over the stage, so that each has one owner;
            // never gathered, and with gradients by rows
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

// What an optimizer should know of a parameter beside its shape (optim/groups.h reads it).
struct UpdateHint {
  enum class Kind {
    kVector,  // gains, biases, sinks, single vectors
    kMatrix,  // a linear map, or a stack of them
    kTable,   // a row for each word or n-gram
  } kind = Kind::kVector;
  bool decays = false;                   // takes part in weight decay
  double lr_scale = 1;                   // of the published recipe
  std::string block_name = {};           // kMatrix: what its rows are blocks of, "head" or "group"; empty: all rows are one
  std::vector<int64_t> block_rows = {};  // of each block

  static UpdateHint vector() { return {}; }
  static UpdateHint gain() { return {Kind::kVector, true}; }
  static UpdateHint matrix() { return {Kind::kMatrix, true}; }
  static UpdateHint blocks(std::string name, std::vector<int64_t> rows) {
    return {Kind::kMatrix, true, 1, std::move(name), std::move(rows)};
  }
  static UpdateHint table(double lr_scale = 1) { return {Kind::kTable, false, lr_scale}; }
};

struct ParameterSpec {
  std::string name;  // released name; stacked experts are `...ffn.experts.w1.weight` [experts, out, in]
  std::vector<int64_t> shape;
  ParameterUse use = ParameterUse::kWeight;
  bool keep_master_type = false;  // computes in the master type even when segments compute in BF16 (mHC, sinks, router biases)
  Initialiser initialiser = {};
  UpdateHint update = {};
  // How it lies over the mesh (engine/layout.h).
  std::string cut_axis = {};  // "tp" or "ep": every rank of the axis has a part of `cut_dim`; empty: all have the whole
  int64_t cut_dim = 0;
  bool partial_over_tp = false;  // what the ranks of a tp group add to its gradient are parts, to be summed; else they are equal
  bool trainable = true;         // false: gets no gradient, no optimizer and, as state, no updates
  std::string role = "replicated";  // what its cut is called (models/adapter/builder.h), for people

  // Takes part in the exchange of units: its shards are gathered, its gradients reduced.
  bool travels() const { return use == ParameterUse::kWeight || use == ParameterUse::kLeaf; }
};

// The box of a tensor that is there as a whole, as a view.
at::Tensor narrow_to(at::Tensor whole, const Box& box);

// This rank's tensors of all parameters of one program.
class ParameterStore {
 public:
  // `master`: FP32, or FP64 for reference runs. `compute`: the type of the compute copies; BF16 or the master type.
  // `table_folder`: where the files of tables lie; empty: tables are in memory. Throws file::FileError.
  ParameterStore(std::vector<ParameterSpec> specs, at::ScalarType master, at::ScalarType compute, const Layout& layout = {},
                 const std::filesystem::path& table_folder = {});

  // Fills every parameter from its initialiser. The bits depend on seed, name and the element's index in the whole parameter.
  void initialise(uint64_t seed);

  size_t size() const { return specs_.size(); }
  const ParameterSpec& spec(ParameterId id) const { return specs_[id.index]; }
  const std::vector<ParameterSpec>& specs() const { return specs_; }
  const ParameterPlacement& placement(ParameterId id) const { return placements_[id.index]; }
  // Throws InternalError for an unknown name.
  ParameterId find(const std::string& name) const;
  bool has(const std::string& name) const { return by_name_.contains(name); }

  at::ScalarType master_type() const { return master_type_; }
  at::ScalarType compute_type() const { return compute_type_; }

  // The master of the owned rows; the optimizer writes it in place, then calls `masters_changed`. Of a table all rows begin:
  // `table` serves without.
  at::Tensor& master(ParameterId id);
  const at::Tensor& master(ParameterId id) const { return const_cast<ParameterStore*>(this)->master(id); }
  // Owned rows in turn, as they are, in pieces of some MiB at most along the first dimension: body(offset, piece). They may not
  // be changed.
  void for_pieces(ParameterId id, const std::function<void(int64_t offset, const at::Tensor& piece)>& body) const;
  // Sets the master: `values(offset, size)` gives a box of the owned rows that begins there in the first dimension.
  void set_master(ParameterId id, const std::function<at::Tensor(int64_t offset, int64_t size)>& values);
  bool is_table(ParameterId id) const { return spec(id).use == ParameterUse::kTable; }
  RowTable& table(ParameterId id) const { return *tables_[id.index]; }
  void masters_changed();  // drops the compute copies: the next gather makes them anew

  // The owned rows in the compute type; the master itself where that is its type.
  at::Tensor owned_copy(ParameterId id) const;
  // The compute copy of the whole part, which lives until `release`.
  void set_compute(ParameterId id, at::Tensor part);
  void gather(ParameterId id);  // of a parameter whose part is owned as a whole
  void release(ParameterId id);
  const at::Tensor& compute(ParameterId id) const;

  // What backward added, in the master type and the part's shape; made of zeros when nothing was added yet.
  at::Tensor& slot(ParameterId id);
  // The same for callers that write all of it where it `is_unset`: nothing was added yet, and its memory holds anything.
  struct Slot {
    at::Tensor tensor;
    bool is_unset;
  };
  Slot open_slot(ParameterId id);
  bool has_slot(ParameterId id) const { return slots_[id.index].defined(); }
  void add_to_slot(ParameterId id, const at::Tensor& gradient);  // any floating type
  void move_to_slot(ParameterId id, at::Tensor gradient);  // of the slot's type and shape; becomes the slot where it is the first
  // Removes and returns the slot.
  at::Tensor take_slot(ParameterId id);

  // The gradient of the owned rows, summed over ranks and micro-batches. Undefined until something was added. Of a table it is
  // put together from its rows, for checks.
  at::Tensor& gradient(ParameterId id);
  void add_gradient(ParameterId id, at::Tensor gradient);  // takes the tensor when it is the first
  // Of a table: adds to the gradients of rows `ids` (repeats allowed, none negative); and the sum by rows so far.
  void add_row_gradients(ParameterId id, const at::Tensor& ids, const at::Tensor& values);
  const RowGradients& row_gradients(ParameterId id);
  void clear_gradients();

  // What a step adds to the masters: slots, gradients, and compute copies that are not the master itself.
  std::vector<at::Tensor> gradients_and_copies() const;

  // A parameter that is not trainable gets no gradient, hence takes part in neither norm, update nor decay.
  bool trainable(ParameterId id) const { return trainable_[id.index]; }
  void set_trainable(ParameterId id, bool trainable) { trainable_[id.index] = trainable; }

 private:
  at::ScalarType compute_type_of(ParameterId id) const;

  std::vector<ParameterSpec> specs_;
  std::vector<ParameterPlacement> placements_;
  std::map<std::string, ParameterId> by_name_;
  at::ScalarType master_type_;
  at::ScalarType compute_type_;
  std::vector<at::Tensor> masters_, computes_, slots_, gradients_;
  std::vector<std::unique_ptr<RowTable>> tables_;
  // Of a table: what was merged, each row once, and what came since, in order.
  struct RowParts {
    std::vector<at::Tensor> rows, values;  // first those of `merged`
    RowGradients merged = {};
    int64_t waiting = 0;  // rows that are not merged
  };
  std::vector<RowParts> row_parts_;
  std::vector<bool> trainable_;
};

}  // namespace hyperparallel::engine
