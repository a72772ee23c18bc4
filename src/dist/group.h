// A group of ranks that exchange tensors: one axis of the mesh. Every exchange of the program names its group.
//
// Calls are collective: every rank of the group makes the same calls in the same order with the same label. Each returns at
// once with a `Pending`; the result is there after `wait()`. A group of one is a group: `SelfGroup` hands back what it is given.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace hyperparallel::dist {

// A started exchange. `wait` blocks until the result is there and returns it; call it once.
class Pending {
 public:
  explicit Pending(std::function<at::Tensor()> finish) : finish_(std::move(finish)) {}
  at::Tensor wait() { return finish_(); }

 private:
  std::function<at::Tensor()> finish_;
};

class Group {
 public:
  virtual ~Group() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Concatenates along dimension 0 in rank order; `rows[r]` is rank r's size there.
  virtual Pending all_gather(const at::Tensor& local, const std::vector<int64_t>& rows, const std::string& label) = 0;
  // The sum over ranks, added in rank order in the tensor's type; rank r keeps its `rows[r]` rows. Transpose of all_gather.
  virtual Pending reduce_scatter(const at::Tensor& full, const std::vector<int64_t>& rows, const std::string& label) = 0;
  // The sum over ranks, added in rank order, on every rank.
  virtual Pending all_reduce(const at::Tensor& local, const std::string& label) = 0;
  // Sends `send_rows[r]` consecutive rows to rank r; returns the rows received, in rank order. Its transpose swaps the two
  // counts.
  virtual Pending all_to_all(const at::Tensor& rows, const std::vector<int64_t>& send_rows,
                             const std::vector<int64_t>& receive_rows, const std::string& label) = 0;
};

// The group of this process alone.
std::shared_ptr<Group> self_group();

}  // namespace hyperparallel::dist
