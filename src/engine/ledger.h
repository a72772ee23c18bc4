// The ledger: every tensor that the engine keeps alive between two actions, by (value, micro-batch).
//
// Three kinds of entry: a value, the gradient summed for a value so far, and the autograd graph of a segment that waits for its
// backward. Values, gradients and the inputs and outputs that a graph holds are counted by storage, so that an alias is not
// counted twice; the rest of a graph is what the allocator handed out while the segment ran (0 where allocations are not counted,
// engine/memory.h).
#pragma once

#include "base/aten.h"

#include <map>
#include <string>
#include <unordered_map>
#include <utility>

#include "engine/value.h"

namespace hyperparallel::engine {

class Ledger {
 public:
  using Key = std::pair<int32_t, int>;  // value index, micro-batch

  void put_value(ValueId value, int micro_batch, at::Tensor tensor);
  const at::Tensor& value(ValueId value, int micro_batch) const;  // throws InternalError when it is not live
  bool has_value(ValueId value, int micro_batch) const { return values_.contains({value.index, micro_batch}); }
  void release_value(ValueId value, int micro_batch);

  // Adds to the gradient of a value: sums are FP32 (FP64 for FP64 values), a single contribution keeps its type. It is never an
  // alias of what somebody else holds.
  void add_gradient(ValueId value, int micro_batch, const at::Tensor& gradient);
  // The summed gradient, removed from the ledger; undefined when nothing was added.
  at::Tensor take_gradient(ValueId value, int micro_batch);
  // The same, still in the ledger.
  at::Tensor gradient(ValueId value, int micro_batch) const;
  bool has_gradient(ValueId value, int micro_batch) const { return gradients_.contains({value.index, micro_batch}); }

  // `held`: the segment's inputs and outputs; `uncounted`: allocated_bytes() - tensor_bytes() before the segment ran.
  void add_graph(int segment, int micro_batch, std::vector<at::Tensor> held, int64_t uncounted);
  void remove_graph(int segment, int micro_batch);

  // Whether an entry holds the tensor's storage.
  bool holds(const at::Tensor& tensor) const { return storages_.contains(tensor.storage().unsafeGetStorageImpl()); }
  int64_t tensor_bytes() const { return tensor_bytes_; }  // without what only a graph holds
  int64_t live_bytes() const { return tensor_bytes_ + graph_bytes_; }
  int64_t peak_bytes() const { return peak_bytes_; }
  size_t live_values() const { return values_.size(); }
  size_t live_gradients() const { return gradients_.size(); }
  size_t live_graphs() const { return graphs_.size(); }
  // One line an entry, largest first; `names` gives the value names by index.
  std::string describe(const std::vector<ValueSpec>& values) const;
  // Throws InternalError naming what is left. Called at the end of a step.
  void check_empty(const std::vector<ValueSpec>& values) const;

 private:
  void hold(const at::Tensor& tensor);
  void drop(const at::Tensor& tensor);
  void note_peak();

  std::map<Key, at::Tensor> values_, gradients_;
  struct Graph {
    std::vector<at::Tensor> held;
    int64_t own_bytes;
  };
  std::map<Key, Graph> graphs_;
  std::unordered_map<const void*, int> storages_;  // storage -> entries that hold it
  int64_t tensor_bytes_ = 0, graph_bytes_ = 0, peak_bytes_ = 0;
};

}  // namespace hyperparallel::engine
