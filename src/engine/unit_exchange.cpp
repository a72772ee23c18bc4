#include "engine/unit_exchange.h"

#include <algorithm>

#include "base/error.h"

namespace hyperparallel::engine {
namespace {

dist::Pending nothing() {
  return dist::Pending([] { return at::Tensor(); });
}

}  // namespace

UnitExchange::UnitExchange(const Program& program, ParameterStore& parameters, const dist::Groups& groups, WaitClock& clock)
    : program_(program), parameters_(parameters), groups_(groups), clock_(clock) {}

void UnitExchange::abandon() {
  gathers_.clear();
  reductions_.clear();
}

// Elements of a parameter that a rank of its shard axis owns.
int64_t UnitExchange::shard_elements(ParameterId id, int rank) const {
  const ParameterPlacement& placement = parameters_.placement(id);
  const int64_t rows = placement.part.size[placement.shard_dim];
  return rows == 0 ? 0 : placement.shard_rows[rank] * (volume(placement.part.size) / rows);
}

bool UnitExchange::is_sharded(ParameterId id) const {
  const ParameterSpec& spec = parameters_.spec(id);
  return spec.travels() && group(shard_axis(spec)).size() > 1;
}

std::vector<UnitExchange::Message> UnitExchange::messages_of(const std::vector<ParameterId>& parameters,
                                                             bool compute_types) const {
  std::map<std::pair<std::string, bool>, std::vector<ParameterId>> kinds;  // (axis, computes in the master type)
  for (ParameterId id : parameters) {
    const std::string axis = shard_axis(parameters_.spec(id));
    if (is_sharded(id)) kinds[{axis, compute_types && parameters_.spec(id).keep_master_type}].push_back(id);
  }
  std::vector<Message> messages;
  for (auto& [kind, ids] : kinds) {
    Message message{std::move(ids), kind.first, std::vector<int64_t>(group(kind.first).size()), nothing()};
    for (size_t rank = 0; rank < message.elements.size(); ++rank) {
      for (ParameterId id : message.parameters) message.elements[rank] += shard_elements(id, static_cast<int>(rank));
    }
    messages.push_back(std::move(message));
  }
  return messages;
}

void UnitExchange::launch_gather(int unit) {
  const Unit& u = program_.units[unit];
  std::vector<Message> messages = messages_of(u.parameters, /*compute_types=*/true);
  for (Message& message : messages) {
    std::vector<at::Tensor> shards;
    for (ParameterId id : message.parameters) shards.push_back(parameters_.owned_copy(id).reshape({-1}));
    const at::Tensor local = at::cat(shards);
    message.pending = group(message.axis).all_gather(local, message.elements, u.name + ".gather");
  }
  HP_CHECK(gathers_.emplace(unit, std::move(messages)).second, "unit {} is gathered twice", u.name);
}

void UnitExchange::wait_gather(int unit) {
  auto node = gathers_.extract(unit);
  HP_CHECK(!node.empty(), "the gather of unit {} was never launched", program_.units[unit].name);
  for (Message& message : node.mapped()) {
    const at::Tensor all = clock_.wait(message.pending, message.axis, program_.units[unit].name + ".gather");
    std::vector<std::vector<at::Tensor>> shards(message.parameters.size());
    int64_t first = 0;
    for (size_t rank = 0; rank < message.elements.size(); ++rank) {
      for (size_t i = 0; i < shards.size(); ++i) {
        const ParameterPlacement& placement = parameters_.placement(message.parameters[i]);
        const int64_t count = shard_elements(message.parameters[i], static_cast<int>(rank));
        std::vector<int64_t> size = placement.part.size;
        size[placement.shard_dim] = placement.shard_rows[rank];
        shards[i].push_back(all.narrow(0, first, count).view(size));
        first += count;
      }
    }
    for (size_t i = 0; i < shards.size(); ++i) {
      const ParameterId id = message.parameters[i];
      parameters_.set_compute(id, at::cat(shards[i], parameters_.placement(id).shard_dim));
    }
  }
  for (ParameterId id : program_.units[unit].parameters) {
    if (!is_sharded(id) && !parameters_.is_table(id)) parameters_.gather(id);
  }
}

void UnitExchange::release(int unit) {
  for (ParameterId id : program_.units[unit].parameters) parameters_.release(id);
}

std::vector<ParameterId> UnitExchange::trained(int unit) const {
  std::vector<ParameterId> ids;
  for (ParameterId id : program_.units[unit].parameters) {
    if (parameters_.spec(id).travels() && parameters_.trainable(id) && program_.gets_gradient[id.index]) ids.push_back(id);
  }
  return ids;
}

void UnitExchange::launch_reduce(int unit) {
  std::vector<Message> messages = messages_of(trained(unit), /*compute_types=*/false);
  for (Message& message : messages) {
    std::vector<at::Tensor> parts;
    std::vector<int64_t> first(message.parameters.size(), 0);
    std::vector<at::Tensor> slots;
    for (ParameterId id : message.parameters) slots.push_back(parameters_.take_slot(id));
    for (size_t rank = 0; rank < message.elements.size(); ++rank) {
      for (size_t i = 0; i < slots.size(); ++i) {
        const ParameterPlacement& placement = parameters_.placement(message.parameters[i]);
        const int64_t rows = placement.shard_rows[rank];
        parts.push_back(slots[i].narrow(placement.shard_dim, first[i], rows).reshape({-1}));
        first[i] += rows;
      }
    }
    message.pending = group(message.axis).reduce_scatter(at::cat(parts), message.elements, program_.units[unit].name + ".reduce");
  }
  HP_CHECK(reductions_.emplace(unit, std::move(messages)).second, "unit {} is reduced twice", program_.units[unit].name);
}

// The gradients of the owned rows of all these parameters, summed over an axis as one message.
void UnitExchange::sum_over(const std::string& axis, const std::vector<ParameterId>& parameters, const std::string& label) {
  if (parameters.empty() || group(axis).size() == 1) return;
  std::vector<at::Tensor> parts;
  for (ParameterId id : parameters) parts.push_back(parameters_.gradient(id).view({-1}));
  dist::Pending pending = group(axis).all_reduce(at::cat(parts), label);
  const at::Tensor sum = clock_.wait(pending, axis, label);
  int64_t first = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    parts[i].copy_(sum.narrow(0, first, parts[i].numel()));
    first += parts[i].numel();
  }
}

void UnitExchange::wait_reduce(int unit, bool last) {
  auto node = reductions_.extract(unit);
  HP_CHECK(!node.empty(), "the reduction of unit {} was never launched", program_.units[unit].name);
  for (Message& message : node.mapped()) {
    const at::Tensor mine = clock_.wait(message.pending, message.axis, program_.units[unit].name + ".reduce");
    int64_t first = 0;
    for (ParameterId id : message.parameters) {
      const auto& size = parameters_.placement(id).owned.size;
      parameters_.add_gradient(id, mine.narrow(0, first, volume(size)).view(size).clone());
      first += volume(size);
    }
  }
  const std::vector<ParameterId> all = trained(unit);
  std::vector<ParameterId> partial, replicated;
  for (ParameterId id : all) {
    const ParameterSpec& spec = parameters_.spec(id);
    if (!is_sharded(id)) parameters_.add_gradient(id, parameters_.take_slot(id));
    if (spec.partial_over_tp) partial.push_back(id);
    if (spec.cut_axis != "ep") replicated.push_back(id);
  }
  if (!last) return;
  sum_over("tp", partial, program_.units[unit].name + ".sum_tp");
  sum_over("fsdp_replicate", replicated, program_.units[unit].name + ".sum_replicas");
}

}  // namespace hyperparallel::engine
