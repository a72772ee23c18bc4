// The schedule: the flat list of actions that one rank carries out in a step. The executor only runs actions.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "engine/program.h"

namespace hyperparallel::engine {

// Which forward work is done again in backward instead of being kept. Only segments that belong to a region (a layer) take part.
// NOTE [Recompute]: regions are cut into runs of `every`. What a run reads from outside and what leaves it stays live; inside, a
// full run keeps discrete choices and what came from other ranks (they are given again, not made or sent again) and makes the
// rest anew, once, just before its backward; exchanges that need no other rank are repeated. `selective` also keeps every value
// whose name matches a glob of `keep`; a segment all of whose inputs are at hand is run again alone. Bits are those of `none` in
// every mix. What an exchange of `regather` brought from other ranks is not held but exchanged again for backward.
// NOTE [Offload]: held values that match `offload` rest in a file (engine/offload.h) between uses that lie three times
// `offload_distance` segments apart or more: they set out after the one, their memory is free `offload_distance` segments later,
// and they set out back as many segments before the next. Program inputs and outputs stay with whoever holds them.
struct RecomputePolicy {
  enum class Mode { kNone, kFull, kSelective } mode = Mode::kNone;
  int every = 1;  // regions per run
  // Globs over value names, `*` spans anything; an exchange is named like its output.
  std::vector<std::string> keep = {};      // kSelective
  std::vector<std::string> regather = {};  // exchanges that are repeated
  std::vector<std::string> offload = {};
  int offload_distance = 8;  // segments
};

enum class ActionKind {
  kForward,          // segment
  kRecompute,        // segment: forward again, with its graph
  kBackward,         // segment
  kLaunch,           // exchange
  kWait,             // exchange
  kLaunchTranspose,  // exchange: gradient of the output sets out
  kWaitTranspose,    // exchange: and arrives at the input
  kLaunchGather,     // unit: its shards set out
  kWaitGather,       // unit: compute copies of its parameters are there
  kReleaseUnit,      // unit
  kLaunchReduce,     // unit: what backward added sets out to the owners
  kWaitReduce,       // unit: and is added to their gradients
  kReleaseValue,     // value: its last reader is done
  kLaunchOffload,    // value: sets out to the file
  kWaitOffload,      // value: is there, its memory is free
  kLaunchFetch,      // value: sets out from the file
  kWaitFetch,        // value: is back
};
const char* to_string(ActionKind kind);

struct Action {
  ActionKind kind;
  int index;                // of the segment, exchange, unit or value
  int micro_batch;          // -1 for units
  bool keep_graph = false;  // kForward: backward of this segment will follow without a recompute
  bool last = false;        // kWaitReduce: the last one of the unit in the step
};

struct ScheduleOptions {
  RecomputePolicy recompute;
  int micro_batches = 1;
  bool backward = true;  // false: forward only (validation, generation); nothing is kept
  // Units are released after every forward and every backward, and gathered again; else they stay for the whole step.
  bool release_after_forward = false;
  // Gradients go to their owners after every micro-batch; else whole ones are kept until the last.
  bool reduce_every_micro_batch = false;
  std::map<std::string, int> axis_sizes = {};  // ranks on a mesh axis; 1 where it is not named
};

// Micro-batches run one after another, each forward then backward. The gather of a unit is launched when the one before it in use
// has arrived, and a reduction is awaited behind the launch of the next.
std::vector<Action> build_schedule(const Program& program, const ScheduleOptions& options);

// Globs of the policy that match no value of the program (for `regather`: no exchange), each with its list: "keep: `x`".
std::vector<std::string> unmatched_globs(const Program& program, const RecomputePolicy& policy);

std::string describe(const Program& program, const std::vector<Action>& schedule);
std::string describe(const Program& program, const Action& action);  // "forward layers.3.attend #0"

}  // namespace hyperparallel::engine
