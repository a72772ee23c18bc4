#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "plan/plan.h"
#include "plan/report_text.h"

namespace hyperparallel::plan {
namespace {

using Json = nlohmann::ordered_json;

const RankMemory& largest(const Plan& plan) {
  return *std::ranges::max_element(plan.ranks, {}, [](const RankMemory& m) { return m.parameters + m.gradients + m.optimizer; });
}

}  // namespace

std::string to_table(const Plan& plan) {
  std::string text = "Mesh\n ";
  for (const std::string& axis : dist::Mesh::axes()) text += fmt::format(" {} {} ", axis, plan.mesh.size(axis));
  text += fmt::format("\n\nParameters: {}\n", with_commas(plan.total()));
  for (const auto& [part, count] : plan.total_by_part()) text += fmt::format("  {:<22}{:>22}\n", part, with_commas(count));

  text += fmt::format("\n{:<46}{:>6}  {:<12}{:<22}{:<22}{:<16}{:<24}{:<22}{}\n", "who holds what", "count", "role", "whole",
                      "of a rank", "cut", "shards", "gradient summed over", "update");
  const auto key = [](const PlannedParameter& p) {
    return fmt::format("{}|{}|{}|{}|{}", without_numbers(p.name), fmt::join(p.shape, ","), p.cut, p.summed_over, p.update);
  };
  for (const auto& [p, count] : grouped(plan.parameters, key)) {
    text += fmt::format("{:<46}{:>6}  {:<12}{:<22}{:<22}{:<16}{:<24}{:<22}{}\n", without_numbers(p->name), count, p->role,
                        fmt::format("[{}]", fmt::join(p->shape, ", ")), fmt::format("[{}]", fmt::join(p->local_shape, ", ")),
                        p->cut.empty() ? "-" : p->cut, p->shard.empty() ? "-" : p->shard,
                        p->unit.empty() ? "(no forward yet)"
                        : p->trained    ? p->summed_over
                                        : "(no gradient)",
                        p->update);
  }

  const RankMemory& most = largest(plan);
  text += fmt::format("\nMemory of the rank that holds most (of {})\n", plan.ranks.size());
  text +=
      fmt::format("  parameters {}, gradients {}, optimizer {}: {}\n", bytes_text(most.parameters), bytes_text(most.gradients),
                  bytes_text(most.optimizer), bytes_text(most.parameters + most.gradients + most.optimizer));
  if (most.outside > 0)
    text += fmt::format("  and outside of device memory (tables, once every row was used, and state in files): {}\n",
                        bytes_text(most.outside));
  text += fmt::format("\nPeak of a step on rank 0: {}, in the {}\n", bytes_text(plan.step.at_peak.total()), plan.step.where);
  for (const MemoryPart& part : memory_parts())
    text += fmt::format("  {:<46}{:>12}\n", part.meaning, bytes_text(plan.step.at_peak.*part.bytes));

  text += fmt::format("\n{:<46}{:>6}  {:<16}{:<18}{:>6}  {:<22}{:>12}\n", "what is sent", "times", "kind", "axis", "ranks",
                      "when", "bytes");
  const auto same = [](const Collective& c) {
    return fmt::format("{}|{}|{}|{}", without_numbers(c.name), c.kind, c.when, c.bytes);
  };
  for (const auto& [c, count] : grouped(plan.collectives, same)) {
    text += fmt::format("{:<46}{:>6}  {:<16}{:<18}{:>6}  {:<22}{:>12}\n", without_numbers(c->name), count * c->times, c->kind,
                        c->axis, c->ranks, c->when, bytes_text(c->bytes));
  }
  if (plan.collectives.empty()) text += "nothing: every group has one rank\n";
  return text;
}

std::string to_json(const Plan& plan) {
  Json list = Json::array(), memory = Json::array(), collectives = Json::array(), mesh;
  for (const PlannedParameter& p : plan.parameters) {
    list.push_back({{"name", p.name},
                    {"part", p.part},
                    {"unit", p.unit},
                    {"shape", p.shape},
                    {"local_shape", p.local_shape},
                    {"role", p.role},
                    {"cut", p.cut},
                    {"shard", p.shard},
                    {"gradient_summed_over", p.summed_over},
                    {"update", p.update},
                    {"trained", p.trained}});
  }
  for (size_t rank = 0; rank < plan.ranks.size(); ++rank) {
    const RankMemory& m = plan.ranks[rank];
    memory.push_back({{"rank", rank},
                      {"parameters", m.parameters},
                      {"gradients", m.gradients},
                      {"optimizer", m.optimizer},
                      {"outside", m.outside}});
  }
  for (const Collective& c : plan.collectives) {
    collectives.push_back({{"name", c.name},
                           {"kind", c.kind},
                           {"axis", c.axis},
                           {"ranks", c.ranks},
                           {"when", c.when},
                           {"times", c.times},
                           {"bytes", c.bytes}});
  }
  for (const std::string& axis : dist::Mesh::axes()) mesh[axis] = plan.mesh.size(axis);
  Json peak{{"total", plan.step.at_peak.total()}, {"in", plan.step.where}};
  for (const MemoryPart& part : memory_parts()) peak[part.name] = plan.step.at_peak.*part.bytes;
  const Json json = {{"parameters", {{"total", plan.total()}, {"by_part", plan.total_by_part()}, {"list", list}}},
                     {"ranks", plan.mesh.world_size()},
                     {"mesh", mesh},
                     {"sizes", plan.symbols},
                     {"memory", {{"ranks", memory}, {"peak", peak}}},
                     {"collectives", collectives}};
  return json.dump(1) + "\n";
}

}  // namespace hyperparallel::plan
