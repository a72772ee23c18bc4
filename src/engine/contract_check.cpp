#include "engine/contract_check.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <xxhash.h>

#include "base/error.h"

namespace hyperparallel::engine {
namespace {

int64_t hash_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return 0;
  const at::Tensor whole = tensor.contiguous();
  return static_cast<int64_t>(XXH3_64bits(whole.const_data_ptr(), whole.nbytes()));
}

struct Item {
  std::string name;
  int64_t hash;
};

// Every rank of the axis calls it with items of the same names.
void expect_equal(dist::Group& group, const std::string& axis, const std::vector<Item>& items, const std::string& where) {
  if (group.size() == 1 || items.empty()) return;
  std::vector<int64_t> mine;
  for (const Item& item : items) mine.push_back(item.hash);
  const std::vector<std::vector<int64_t>> all = group.gather_counts(mine, "check_contracts " + where);
  for (size_t i = 0; i < items.size(); ++i) {
    std::vector<int> others;
    for (size_t rank = 1; rank < all.size(); ++rank) {
      if (all[rank][i] != all[0][i]) others.push_back(group.members()[rank]);
    }
    HP_CHECK(others.empty(),
             "debug.check_contracts: {}: {} should be the same on the ranks of {}; on rank{} {} it is not that of rank {}", where,
             items[i].name, axis, others.size() == 1 ? "" : "s", fmt::join(others, ", "), group.members()[0]);
  }
}

std::string region_of(const Program& program, const Exchange& exchange) {
  return exchange.region < 0 ? "outside of the layers" : "region " + program.regions[exchange.region];
}

}  // namespace

void ContractCheck::on_run_begin(const Executor& executor) {
  const ParameterStore& store = executor.parameters();
  std::vector<Item> over_tp, over_replicas, over_stage;
  for (const ParameterSpec& spec : store.specs()) {
    if (spec.use == ParameterUse::kTable) continue;  // its rows have one owner each
    const Item item{"parameter " + spec.name, hash_of(store.master(store.find(spec.name)))};
    if (spec.use == ParameterUse::kState) {
      over_stage.push_back(item);
      continue;
    }
    if (spec.cut_axis.empty()) over_tp.push_back(item);
    if (spec.cut_axis != "ep") over_replicas.push_back(item);
  }
  expect_equal(executor.group("tp"), "tp", over_tp, "before the step");
  expect_equal(executor.group("fsdp_replicate"), "fsdp_replicate", over_replicas, "before the step");
  expect_equal(executor.group("stage"), "stage", over_stage, "before the step");
}

void ContractCheck::on_action_begin(const Executor& executor, const Action& action) {
  if (action.kind != ActionKind::kLaunch && action.kind != ActionKind::kLaunchTranspose) return;
  const Program& program = executor.program();
  const Exchange& exchange = program.exchanges[action.index];
  const bool is_forward = action.kind == ActionKind::kLaunch;
  const bool enters = exchange.kind == ExchangeKind::kEnter || exchange.kind == ExchangeKind::kSplit;
  const bool leaves = exchange.kind == ExchangeKind::kAllReduce || exchange.kind == ExchangeKind::kCollect;
  if (is_forward ? !enters : !leaves) return;
  const Ledger& ledger = executor.ledger();
  const ValueId id = is_forward ? exchange.input : exchange.output;
  const at::Tensor tensor = is_forward ? ledger.value(id, action.micro_batch) : ledger.gradient(id, action.micro_batch);
  const std::string name = fmt::format("{} `{}`", is_forward ? "value" : "the gradient of", program.values[id.index].name);
  expect_equal(executor.group(exchange.axis), exchange.axis, {{name, hash_of(tensor)}},
               fmt::format("{}, {}", region_of(program, exchange), describe(program, action)));
}

}  // namespace hyperparallel::engine
