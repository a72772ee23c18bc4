#include "plan/plan.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/error.h"
#include "plan/memory.h"
#include "plan/messages.h"
#include "plan/timeline.h"

namespace hyperparallel::plan {
namespace {

using engine::ParameterSpec;

class Planner {
 public:
  explicit Planner(const PlanRequest& request) : r_(request), program_(*request.program), messages_(request) {}

  Plan run() {
    plan_.mesh = r_.layout.mesh;
    plan_.symbols = r_.symbols;
    for (size_t i = 0; i < program_.parameters.size(); ++i)
      add_parameter(program_.parameters[i], program_.units[program_.unit_of[i]].name, program_.gets_gradient[i]);
    for (const ParameterSpec& spec : r_.without_forward) add_parameter(spec, "", false);
    add_memory();
    add_exchanges();
    add_units();
    plan_.timeline = make_timeline(r_);
    plan_.step = replay_memory(r_, plan_.ranks[r_.layout.rank].parameters + plan_.ranks[r_.layout.rank].optimizer);
    plan_.regions = program_.regions;
    plan_.micro_batches = r_.schedule.micro_batches;
    return std::move(plan_);
  }

 private:
  void add_parameter(const ParameterSpec& spec, const std::string& unit, bool trained) {
    const engine::ParameterPlacement placement = engine::place(spec, r_.layout);
    PlannedParameter p{
        spec.name, r_.part_of(spec.name), unit,           spec.shape, spec.role, "", "", placement.part.size, "", "",
        trained,   placement.part,        placement.owned};
    if (const auto update = r_.updates.find(spec.name); update != r_.updates.end()) p.update = update->second.name;
    if (!spec.cut_axis.empty()) p.cut = fmt::format("dim {} over {}", spec.cut_dim, spec.cut_axis);
    if (!placement.shard_rows.empty()) p.shard = fmt::format("dim {} over {}", placement.shard_dim, engine::shard_axis(spec));
    if (trained && spec.travels()) {
      if (spec.partial_over_tp && r_.layout.size("tp") > 1) p.summed_over = "tp";
      if (spec.cut_axis != "ep" && r_.layout.size("fsdp_replicate") > 1)
        p.summed_over += p.summed_over.empty() ? "fsdp_replicate" : ", fsdp_replicate";
    }
    plan_.parameters.push_back(std::move(p));
  }

  void add_memory() {
    engine::Layout layout = r_.layout;
    for (layout.rank = 0; layout.rank < layout.mesh.world_size(); ++layout.rank) {
      RankMemory memory;
      for (size_t i = 0; i < program_.parameters.size(); ++i) {
        const int64_t elements = owned_elements(program_.parameters[i], layout);
        const auto update = r_.updates.find(program_.parameters[i].name);
        const int64_t state = update == r_.updates.end() ? 0 : update->second.state_bytes * elements;
        if (program_.parameters[i].use == engine::ParameterUse::kTable) {
          memory.outside += elements * r_.master_bytes + state;
          continue;
        }
        memory.parameters += elements * r_.master_bytes;
        if (program_.gets_gradient[i]) memory.gradients += elements * r_.master_bytes;
        (r_.state_in_files ? memory.outside : memory.optimizer) += state;
      }
      plan_.ranks.push_back(memory);
    }
  }

  void add(const std::string& name, const char* when, int64_t times, const Message& message) {
    plan_.collectives.push_back({name, message.kind, message.axis, when, r_.layout.size(message.axis), times, message.bytes});
  }

  void add_exchanges() {
    for (const engine::Exchange& exchange : program_.exchanges) {
      if (const auto message = messages_.forward(exchange)) add(exchange.name, "forward", r_.schedule.micro_batches, *message);
      if (const auto message = messages_.backward(exchange)) add(exchange.name, "backward", r_.schedule.micro_batches, *message);
    }
    add_inner_exchanges();
  }

  // Segments that are computed again exchange again.
  void add_inner_exchanges() {
    std::map<int, int64_t> forwards, backwards;
    for (const engine::Action& action : engine::build_schedule(program_, r_.schedule)) {
      using Kind = engine::ActionKind;
      if (action.kind == Kind::kForward || action.kind == Kind::kRecompute) ++forwards[action.index];
      if (action.kind == Kind::kBackward) ++backwards[action.index];
    }
    for (size_t s = 0; s < program_.segments.size(); ++s) {
      for (const engine::InnerExchange& exchange : program_.segments[s].inner) {
        const auto message = messages_.inside(exchange);
        if (!message) continue;
        const int index = static_cast<int>(s);
        if (forwards[index] > 0) add(exchange.name, "forward", forwards[index], *message);
        if (backwards[index] > 0) add(exchange.name, "backward", backwards[index], *message);
      }
    }
  }

  void add_units() {
    const int64_t gathers = r_.schedule.release_after_forward ? 2 * r_.schedule.micro_batches : 1;
    const int64_t reductions = r_.schedule.reduce_every_micro_batch ? r_.schedule.micro_batches : 1;
    for (const engine::Unit& unit : program_.units) {
      for (const Message& message : messages_.gather(unit))
        add(unit.name + ".gather", r_.schedule.release_after_forward ? "forward and backward" : "step", gathers, message);
      for (const Message& message : messages_.reduce(unit)) add(unit.name + ".reduce", "backward", reductions, message);
      for (const Message& message : messages_.sum(unit)) add(unit.name + ".sum", "step", 1, message);
    }
  }

  const PlanRequest& r_;
  const engine::Program& program_;
  const Messages messages_;
  Plan plan_;
};

}  // namespace

const std::vector<MemoryPart>& memory_parts() {
  static const std::vector<MemoryPart> parts = {
      {"state", "masters and optimizer state", &MemoryParts::state},
      {"gradients", "gradients of the owned rows", &MemoryParts::gradients},
      {"slots", "weight gradients before they are reduced", &MemoryParts::slots},
      {"copies", "gathered parameters in the compute type", &MemoryParts::copies},
      {"inputs", "inputs of the micro-batches", &MemoryParts::inputs},
      {"values", "values between segments", &MemoryParts::values},
      {"graphs", "what segments keep for their backward", &MemoryParts::graphs},
      {"value_sums", "gradients of values", &MemoryParts::value_sums},
      {"messages", "what is on its way", &MemoryParts::messages},
      {"work", "what a segment needs while it runs", &MemoryParts::work},
  };
  return parts;
}

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
