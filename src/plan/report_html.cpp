// The data of the plan's page, and the page.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "base/page.h"
#include "plan/page.h"
#include "plan/plan.h"
#include "plan/report_text.h"

namespace hyperparallel::plan {
namespace {

using Json = nlohmann::ordered_json;

// The ranks that the page shows: all of a small mesh; of a large one the blocks of ranks that hold one micro-batch or one set of
// all experts, from the front, and the last block.
std::vector<int> shown_ranks(const dist::Mesh& mesh) {
  constexpr int kMost = 192;
  const int world = mesh.world_size(), block = std::max(mesh.size("sample"), mesh.size("ep"));
  const int front = world <= kMost ? world : std::min(world, std::max(block, (kMost - block) / block * block));
  std::vector<int> ranks;
  for (int rank = 0; rank < front; ++rank) ranks.push_back(rank);
  for (int rank = std::max(front, world - block); rank < world; ++rank) ranks.push_back(rank);
  return ranks;
}

Json mesh_data(const dist::Mesh& mesh) {
  Json axes = Json::array(), ranks = Json::array();
  std::vector<std::string> names;
  for (const std::string& axis : dist::Mesh::axes()) {
    if (axis == "world" || axis == "stage" || axis == "fsdp" || axis == "vision" || axis == "pp") continue;
    names.push_back(axis);
    axes.push_back({{"name", axis}, {"size", mesh.size(axis)}});
  }
  for (int rank : shown_ranks(mesh)) {
    Json coordinates = Json::array(), groups = Json::array();  // a group is called by its first rank
    for (const std::string& axis : names) {
      coordinates.push_back(mesh.coordinate(axis, rank));
      groups.push_back(mesh.members(axis, rank).front());
    }
    ranks.push_back({{"rank", rank}, {"at", coordinates}, {"group", groups}});
  }
  return {{"world", mesh.world_size()}, {"row", mesh.size("sample")}, {"axes", axes}, {"ranks", ranks}};
}

Json box_data(const Box& box) {
  return {{"offset", box.offset}, {"size", box.size}};
}

Json parameters_data(const Plan& plan) {
  Json list = Json::array();
  const auto key = [](const PlannedParameter& p) {
    return fmt::format("{}|{}|{}|{}|{}", without_numbers(p.name), fmt::join(p.shape, ","), p.cut, p.summed_over, p.update);
  };
  for (const auto& [p, count] : grouped(plan.parameters, key)) {
    list.push_back({{"name", without_numbers(p->name)},
                    {"part", p->part},
                    {"unit", without_numbers(p->unit)},
                    {"count", count},
                    {"shape", p->shape},
                    {"role", p->role},
                    {"cut", p->cut},
                    {"shard", p->shard},
                    {"computed", box_data(p->computed)},
                    {"owned", box_data(p->owned)},
                    {"summed", p->summed_over},
                    {"update", p->update},
                    {"trained", p->trained}});
  }
  return list;
}

Json memory_data(const Plan& plan) {
  Json ranks = Json::array();
  for (const RankMemory& m : plan.ranks) ranks.push_back({m.parameters, m.gradients, m.optimizer});
  Json peak = Json::array();
  for (const MemoryPart& part : memory_parts()) peak.push_back({part.name, part.meaning, plan.step.at_peak.*part.bytes});
  return {{"ranks", ranks}, {"peak", peak}, {"where", plan.step.where}, {"curve", plan.step.curve}};
}

Json timeline_data(const Plan& plan) {
  Json events = Json::array();
  for (const TimelineEvent& e : plan.timeline)
    events.push_back({e.name, e.kind, e.axis, e.lane, e.region, e.begin, e.end, e.bytes});
  return {{"regions", plan.regions}, {"micro_batches", plan.micro_batches}, {"events", events}};
}

Json collectives_data(const Plan& plan) {
  Json list = Json::array();
  const auto same = [](const Collective& c) {
    return fmt::format("{}|{}|{}|{}", without_numbers(c.name), c.kind, c.when, c.bytes);
  };
  for (const auto& [c, count] : grouped(plan.collectives, same)) {
    list.push_back({{"name", without_numbers(c->name)},
                    {"kind", c->kind},
                    {"axis", c->axis},
                    {"ranks", c->ranks},
                    {"when", c->when},
                    {"times", count * c->times},
                    {"bytes", c->bytes}});
  }
  return list;
}

}  // namespace

std::string to_html(const Plan& plan, const std::string& title) {
  const Json json = {{"title", title},
                     {"total", plan.total()},
                     {"parts", plan.total_by_part()},
                     {"sizes", plan.symbols},
                     {"mesh", mesh_data(plan.mesh)},
                     {"parameters", parameters_data(plan)},
                     {"memory", memory_data(plan)},
                     {"timeline", timeline_data(plan)},
                     {"collectives", collectives_data(plan)}};
  return fill_page(kPlanPage, kPlanPlaceholder, json.dump(-1, ' ', false, Json::error_handler_t::replace));
}

}  // namespace hyperparallel::plan
