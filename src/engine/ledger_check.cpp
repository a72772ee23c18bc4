#include "engine/ledger_check.h"

#include <cstdlib>
#include <unordered_set>

#include "base/error.h"
#include "engine/memory.h"

namespace hyperparallel::engine {

void LedgerCheck::on_run_begin(const Executor& executor) {
  HP_CHECK(allocated_bytes() > 0, "allocations are not counted");
  inputs_.clear();
  const int micro_batches = static_cast<int>(executor.losses().size());
  for (int m = 0; m < micro_batches; ++m) {
    for (ValueId id : executor.program().inputs) inputs_.push_back(executor.ledger().value(id, m));
  }
  others_ = allocated_bytes() - counted(executor);
}

// The ledger, and what is rightly alive beside it.
int64_t LedgerCheck::counted(const Executor& executor) const {
  int64_t bytes = executor.ledger().live_bytes();
  std::unordered_set<const void*> seen;
  const auto add = [&](const at::Tensor& tensor) {
    if (executor.ledger().holds(tensor) || !seen.insert(tensor.storage().unsafeGetStorageImpl()).second) return;
    bytes += static_cast<int64_t>(tensor.storage().nbytes());
  };
  for (const at::Tensor& tensor : inputs_) add(tensor);
  for (const at::Tensor& tensor : executor.parameters().gradients_and_copies()) add(tensor);
  for (const ValueMap& outputs : executor.outputs()) {
    for (const auto& [id, tensor] : outputs) add(tensor);
  }
  for (const auto& [name, tensor] : executor.counters()) add(tensor);
  return bytes;
}

void LedgerCheck::on_action_end(const Executor& executor, const Action& action) {
  if (executor.exchanging()) return;  // the exchange may hold tensors of its own
  const int64_t ledger = counted(executor), live = allocated_bytes() - others_;
  HP_CHECK(std::abs(ledger - live) <= live / 100 + (64 << 10),
           "debug.check_ledger: after `{}` the ledger counts {} bytes, and {} are alive\n{}",
           describe(executor.program(), action), ledger, live, executor.ledger().describe(executor.program().values));
}

}  // namespace hyperparallel::engine
