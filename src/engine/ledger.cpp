#include "engine/ledger.h"

#include "base/error.h"
#include "engine/memory.h"
#include "kernels/types.h"

namespace hyperparallel::engine {

void Ledger::hold(const at::Tensor& tensor) {
  if (storages_[tensor.storage().unsafeGetStorageImpl()]++ == 0) tensor_bytes_ += static_cast<int64_t>(tensor.storage().nbytes());
  note_peak();
}

void Ledger::drop(const at::Tensor& tensor) {
  auto it = storages_.find(tensor.storage().unsafeGetStorageImpl());
  if (--it->second == 0) {
    tensor_bytes_ -= static_cast<int64_t>(tensor.storage().nbytes());
    storages_.erase(it);
  }
}

void Ledger::note_peak() {
  peak_bytes_ = std::max(peak_bytes_, live_bytes());
}

void Ledger::put_value(ValueId value, int micro_batch, at::Tensor tensor) {
  hold(tensor);
  auto [it, is_new] = values_.try_emplace({value.index, micro_batch}, tensor);
  if (!is_new) {  // made again by recomputation: the same bits, and the old copy goes
    drop(it->second);
    it->second = std::move(tensor);
  }
}

const at::Tensor& Ledger::value(ValueId value, int micro_batch) const {
  auto it = values_.find({value.index, micro_batch});
  HP_CHECK(it != values_.end(), "value {} of micro-batch {} is not live", value.index, micro_batch);
  return it->second;
}

void Ledger::release_value(ValueId value, int micro_batch) {
  auto it = values_.find({value.index, micro_batch});
  HP_CHECK(it != values_.end(), "value {} of micro-batch {} is released twice", value.index, micro_batch);
  drop(it->second);
  values_.erase(it);
}

void Ledger::add_gradient(ValueId value, int micro_batch, const at::Tensor& gradient) {
  auto it = gradients_.find({value.index, micro_batch});
  if (it != gradients_.end()) {
    at::Tensor& sum = it->second;
    if (const auto type = kernels::math_type(sum.scalar_type()); type != sum.scalar_type()) {
      drop(sum);
      sum = sum.to(type);
      hold(sum);
    }
    sum.add_(gradient);
    return;
  }
  // A gradient that nobody else holds is taken as it is; any other may alias a seed or another gradient and is copied.
  const bool is_alone = gradient.use_count() == 1 && gradient.storage().use_count() == 1 && gradient.is_contiguous();
  at::Tensor sum = is_alone ? gradient : gradient.clone(at::MemoryFormat::Contiguous);
  hold(sum);
  gradients_.emplace(Key{value.index, micro_batch}, std::move(sum));
}

at::Tensor Ledger::take_gradient(ValueId value, int micro_batch) {
  auto it = gradients_.find({value.index, micro_batch});
  if (it == gradients_.end()) return {};
  at::Tensor gradient = std::move(it->second);
  drop(gradient);
  gradients_.erase(it);
  return gradient;
}

at::Tensor Ledger::gradient(ValueId value, int micro_batch) const {
  auto it = gradients_.find({value.index, micro_batch});
  return it == gradients_.end() ? at::Tensor() : it->second;
}

void Ledger::add_graph(int segment, int micro_batch, std::vector<at::Tensor> held, int64_t uncounted) {
  for (const at::Tensor& tensor : held) hold(tensor);
  const int64_t allocated = allocated_bytes();
  const int64_t own_bytes = allocated == 0 ? 0 : std::max<int64_t>(0, allocated - tensor_bytes_ - uncounted);
  graphs_[{segment, micro_batch}] = {std::move(held), own_bytes};
  graph_bytes_ += own_bytes;
  note_peak();
}

void Ledger::remove_graph(int segment, int micro_batch) {
  auto it = graphs_.find({segment, micro_batch});
  HP_CHECK(it != graphs_.end(), "segment {} of micro-batch {} has no graph", segment, micro_batch);
  for (const at::Tensor& tensor : it->second.held) drop(tensor);
  graph_bytes_ -= it->second.own_bytes;
  graphs_.erase(it);
}

std::string Ledger::describe(const std::vector<ValueSpec>& values) const {
  std::vector<std::pair<int64_t, std::string>> lines;
  auto add = [&](const char* kind, const Key& key, const at::Tensor& tensor) {
    lines.emplace_back(tensor.storage().nbytes(), fmt::format("{} {} micro-batch {}", kind, values[key.first].name, key.second));
  };
  for (const auto& [key, tensor] : values_) add("value", key, tensor);
  for (const auto& [key, tensor] : gradients_) add("gradient", key, tensor);
  for (const auto& [key, graph] : graphs_)
    lines.emplace_back(graph.own_bytes, fmt::format("graph of segment {} micro-batch {}", key.first, key.second));
  std::sort(lines.rbegin(), lines.rend());
  std::string text = fmt::format("{} bytes live, {} at the peak\n", live_bytes(), peak_bytes_);
  for (const auto& [bytes, line] : lines) text += fmt::format("{:>14} {}\n", bytes, line);
  return text;
}

void Ledger::check_empty(const std::vector<ValueSpec>& values) const {
  HP_CHECK(values_.empty() && gradients_.empty() && graphs_.empty(), "the step left entries in the ledger:\n{}",
           describe(values));
}

}  // namespace hyperparallel::engine
