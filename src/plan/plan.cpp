#include "plan/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/error.h"

namespace hyperparallel::plan {
namespace {

using engine::ExchangeKind;
using engine::ParameterSpec;

// Elements that a rank owns of a parameter, as engine::place says, without making boxes: a plan of thousands of ranks asks
// millions of times.
int64_t owned_elements(const ParameterSpec& spec, const engine::Layout& layout) {
  int64_t elements = volume(spec.shape);
  const auto cut = [&](int64_t size, const std::string& axis) {
    const int64_t part = layout.part(size, axis);
    elements = size == 0 ? 0 : elements / size * part;
    return part;
  };
  const int64_t part = spec.cut_axis.empty() ? 0 : cut(spec.shape[spec.cut_dim], spec.cut_axis);
  if (spec.use == engine::ParameterUse::kState) return elements;
  const int64_t dim = engine::shard_dim(spec, layout);
  cut(!spec.cut_axis.empty() && spec.cut_dim == dim ? part : spec.shape[dim], engine::shard_axis(spec));
  return elements;
}

class Planner {
 public:
  explicit Planner(const PlanRequest& request) : r_(request), program_(*request.program) {}

  Plan run() {
    plan_.mesh = r_.layout.mesh;
    plan_.symbols = r_.symbols;
    find_trained();
    for (size_t i = 0; i < program_.parameters.size(); ++i)
      add_parameter(program_.parameters[i], program_.units[program_.unit_of[i]].name, trained_[i]);
    for (const ParameterSpec& spec : r_.without_forward) add_parameter(spec, "", false);
    add_memory();
    add_exchanges();
    add_units();
    return std::move(plan_);
  }

 private:
  // Parameters whose segments have a backward.
  void find_trained() {
    trained_.assign(program_.parameters.size(), false);
    for (const engine::Segment& segment : program_.segments) {
      if (!std::ranges::any_of(segment.makes, [&](engine::ValueId id) { return program_.needs_gradient[id.index]; })) continue;
      for (engine::ParameterId id : segment.parameters)
        trained_[id.index] = program_.parameters[id.index].use != engine::ParameterUse::kState;
    }
  }

  void add_parameter(const ParameterSpec& spec, const std::string& unit, bool trained) {
    const engine::ParameterPlacement placement = engine::place(spec, r_.layout);
    PlannedParameter p{spec.name, r_.part_of(spec.name), unit, spec.shape, "", "", placement.part.size, "", trained};
    if (!spec.cut_axis.empty()) p.cut = fmt::format("dim {} over {}", spec.cut_dim, spec.cut_axis);
    if (!placement.shard_rows.empty()) p.shard = fmt::format("dim {} over {}", placement.shard_dim, engine::shard_axis(spec));
    if (trained) {
      if (spec.partial_over_tp) p.summed_over = "tp";
      if (spec.cut_axis != "ep") p.summed_over += p.summed_over.empty() ? "fsdp_replicate" : ", fsdp_replicate";
    }
    plan_.parameters.push_back(std::move(p));
  }

  void add_memory() {
    engine::Layout layout = r_.layout;
    for (layout.rank = 0; layout.rank < layout.mesh.world_size(); ++layout.rank) {
      RankMemory memory;
      for (size_t i = 0; i < program_.parameters.size(); ++i) {
        const int64_t elements = owned_elements(program_.parameters[i], layout);
        memory.parameters += elements * r_.master_bytes;
        if (trained_[i]) memory.gradients += elements * r_.master_bytes;
        if (program_.parameters[i].use != engine::ParameterUse::kState) memory.optimizer += 2 * elements * r_.master_bytes;
      }
      plan_.ranks.push_back(memory);
    }
  }

  int64_t elements_of(const engine::ValueSpec& value) const {
    int64_t elements = 1;
    for (const engine::Dimension& dimension : value.shape) {
      const auto found = r_.symbols.find(dimension.symbol);
      elements *= dimension.symbol.empty() ? dimension.size : found == r_.symbols.end() ? 0 : found->second;
    }
    return elements;
  }
  int64_t bytes_of(engine::ValueId id) const {
    const engine::ValueSpec& value = program_.values[id.index];
    return elements_of(value) * (value.kind == engine::ValueKind::kDiscrete ? 8 : r_.compute_bytes);
  }

  void add_exchanges() {
    for (const engine::Exchange& exchange : program_.exchanges) {
      const int size = r_.layout.size(exchange.axis);
      const bool derives = program_.needs_gradient[exchange.output.index];
      const int64_t bytes = std::max(bytes_of(exchange.input), bytes_of(exchange.output));
      const auto add = [&](const char* kind, const char* when, int64_t scale) {
        if (size > 1)
          plan_.collectives.push_back({exchange.name, kind, exchange.axis, when, size, r_.micro_batches, bytes * scale});
      };
      const int64_t as_sums = r_.master_bytes / std::min(r_.compute_bytes, r_.master_bytes);  // gradients travel in FP32
      switch (exchange.kind) {
        case ExchangeKind::kAllGather:
          add("all-gather", "forward", 1);
          if (derives) add("reduce-scatter", "backward", as_sums);
          break;
        case ExchangeKind::kReduceScatter:
          add("reduce-scatter", "forward", 1);
          if (derives) add("all-gather", "backward", as_sums);
          break;
        case ExchangeKind::kAllReduce:
          add("all-reduce", "forward", 1);
          break;
        case ExchangeKind::kEnter:
          if (derives) add("all-reduce", "backward", as_sums);
          break;
        case ExchangeKind::kSplit:
          if (derives) add("all-gather", "backward", as_sums);
          break;
        case ExchangeKind::kCollect:
          add("all-gather", "forward", 1);
          break;
        case ExchangeKind::kAllToAll:
          add("all-to-all", "forward", 1);
          if (derives) add("all-to-all", "backward", as_sums);
          break;
      }
    }
    std::set<int32_t> counted;
    for (const engine::Segment& segment : program_.segments) {
      for (engine::ValueId id : segment.makes) {
        if (counted.insert(id.index).second) plan_.value_bytes += bytes_of(id);
      }
    }
  }

  void add_units() {
    const int64_t gathers = r_.reshard ? 2 * r_.micro_batches : 1, reductions = r_.reshard ? r_.micro_batches : 1;
    int64_t former = 0;
    for (const engine::Unit& unit : program_.units) {
      int64_t copies = 0;
      std::map<std::string, int64_t> gathered, reduced, summed;  // bytes by axis
      for (engine::ParameterId id : unit.parameters) {
        const ParameterSpec& spec = program_.parameters[id.index];
        const int64_t elements = volume(engine::place(spec, r_.layout).part.size);
        const int64_t compute = elements * (spec.keep_master_type ? r_.master_bytes : r_.compute_bytes);
        copies += compute;
        if (spec.use == engine::ParameterUse::kState) continue;
        gathered[engine::shard_axis(spec)] += compute;
        if (!trained_[id.index]) continue;
        reduced[engine::shard_axis(spec)] += elements * r_.master_bytes;
        const int64_t owned = owned_elements(spec, r_.layout) * r_.master_bytes;
        if (spec.partial_over_tp) summed["tp"] += owned;
        if (spec.cut_axis != "ep") summed["fsdp_replicate"] += owned;
      }
      const auto add = [&](const std::map<std::string, int64_t>& by_axis, const char* suffix, const char* kind, const char* when,
                           int64_t times) {
        for (const auto& [axis, bytes] : by_axis) {
          if (r_.layout.size(axis) > 1)
            plan_.collectives.push_back({unit.name + suffix, kind, axis, when, r_.layout.size(axis), times, bytes});
        }
      };
      add(gathered, ".gather", "all-gather", r_.reshard ? "forward and backward" : "step", gathers);
      add(reduced, ".reduce", "reduce-scatter", "backward", reductions);
      add(summed, ".sum", "all-reduce", "step", 1);
      plan_.gathered_bytes = std::max(plan_.gathered_bytes, former + copies);
      former = copies;
    }
  }

  const PlanRequest& r_;
  const engine::Program& program_;
  std::vector<bool> trained_;
  Plan plan_;
};

}  // namespace

int64_t Plan::total() const {
  int64_t sum = 0;
  for (const PlannedParameter& p : parameters) sum += volume(p.shape);
  return sum;
}

std::map<std::string, int64_t> Plan::total_by_part() const {
  std::map<std::string, int64_t> sums;
  for (const PlannedParameter& p : parameters) sums[p.part] += volume(p.shape);
  return sums;
}

Plan make_plan(const PlanRequest& request) {
  HP_CHECK(request.program != nullptr && request.part_of != nullptr, "a plan without program or parts");
  return Planner(request).run();
}

}  // namespace hyperparallel::plan
