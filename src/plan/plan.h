// The plan: before any memory is taken, who holds what, what is sent when, and how much memory each rank needs for it. A plain
// value, computed from the program, the mesh and sizes alone; no tensor is made, so that it works for any model and any number of
// ranks on one core.
//
// NOTE [What is exact]: parameters, gradients and optimizer state are exactly what a run holds.
// The peak of a step is predicted: the schedule is replayed on bytes (plan/memory.h), with sizes of routing as the request's
// symbols say, and what segments need inside as their footprints say.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "engine/layout.h"
#include "engine/program.h"
#include "engine/schedule.h"

namespace hyperparallel::plan {

struct PlannedParameter {
  std::string name, part, unit;  // part: of the model, as its adapter calls it; unit: empty where no segment uses it yet
  std::vector<int64_t> shape;
  std::string role;                  // replicated, column, row, vocab, expert or table, as its segments compute with it
  std::string cut;                   // "dim 0 over tp"; empty: whole on every rank
  std::string shard;                 // "dim 0 over fsdp_shard"; empty: on every rank
  std::vector<int64_t> local_shape;  // what segments of rank 0 compute with
  std::string summed_over;           // axes that its gradient is summed over beside the shards
  std::string update;                // how its optimizer changes it; empty: none does
  bool trained = true;               // gets a gradient
  Box computed = {}, owned = {};     // of the whole parameter: what rank 0 computes with, and what it owns of that
};

struct RankMemory {
  int64_t parameters = 0, gradients = 0, optimizer = 0;  // bytes: masters, FP32 sums of the owned rows, optimizer state
  // Bytes outside of device memory: tables (ParameterUse::kTable) with their optimizer state, once every row was used, and
  // optimizer state that lies in files.
  int64_t outside = 0;
};

struct Collective {
  std::string name, kind, axis, when;  // when: "forward", "backward", "forward and backward", "step"
  int ranks = 0;
  int64_t times = 0;  // a step
  int64_t bytes = 0;  // that rank 0 holds at its larger end, each time
};

struct TimelineEvent {
  std::string name, kind;      // kind: "forward", "recompute", "backward" of a segment, or a collective
  std::string axis;            // of a collective
  std::string lane;            // "compute"; "critical": values that the next segments wait for; "bulk": parameters and gradients
  int region = -1;             // of Plan::regions
  int64_t begin = 0, end = 0;  // in segments run: launched and awaited
  int64_t bytes = 0;           // as of Collective
};

// Bytes by what they are for, plan/memory.h.
struct MemoryParts {
  int64_t state = 0, inputs = 0, gradients = 0, slots = 0, copies = 0, values = 0, value_sums = 0, graphs = 0, messages = 0,
          work = 0;
  int64_t total() const { return state + inputs + gradients + slots + copies + values + value_sums + graphs + messages + work; }
};
// NAME, what it is, member: all of them, in the order of the report.
struct MemoryPart {
  const char *name, *meaning;
  int64_t MemoryParts::*bytes;
};
const std::vector<MemoryPart>& memory_parts();

struct StepMemory {
  MemoryParts at_peak;         // of rank 0
  std::string where;           // what runs there
  std::vector<int64_t> curve;  // the highest within each segment run of the last micro-batch
};

struct Plan {
  dist::Mesh mesh = dist::Mesh(1, dist::MeshDegrees());
  std::map<std::string, int64_t> symbols;
  std::vector<PlannedParameter> parameters;
  std::vector<RankMemory> ranks;
  StepMemory step;
  std::vector<Collective> collectives;
  std::vector<TimelineEvent> timeline;  // of one micro-batch on rank 0 (plan/timeline.h)
  std::vector<std::string> regions;     // layers, by name
  int64_t micro_batches = 1;

  int64_t total() const;                                 // elements of all parameters
  std::map<std::string, int64_t> total_by_part() const;  // elements
};

// Of a parameter that has an optimizer.
struct PlannedUpdate {
  std::string name;         // for people
  int64_t state_bytes = 0;  // of each element
};

struct PlanRequest {
  const engine::Program* program = nullptr;                 // of rank 0
  std::vector<engine::ParameterSpec> without_forward = {};  // declared parameters that no segment uses yet
  engine::Layout layout;                                    // of rank 0
  // Rows by symbol of the program's shapes, for rank 0. A symbol that is missing counts as 0.
  std::map<std::string, int64_t> symbols = {};
  int64_t compute_bytes = 4, master_bytes = 4;  // of an element
  engine::ScheduleOptions schedule;             // as of a run
  std::function<std::string(const std::string& parameter)> part_of = {};
  std::map<std::string, PlannedUpdate> updates = {};  // by parameter
  bool state_in_files = false;                        // optimizer state
};

Plan make_plan(const PlanRequest& request);

// As text for a person, and as JSON: {"parameters": {"total", "by_part", "list"}, "ranks", "mesh", "memory", "collectives"}.
std::string to_table(const Plan& plan);
std::string to_json(const Plan& plan);
// One page for a browser, complete in itself: the mesh, who owns what, the time line, memory. `title`: what was planned.
std::string to_html(const Plan& plan, const std::string& title);

}  // namespace hyperparallel::plan
