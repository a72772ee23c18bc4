// The schedule: the flat list of actions that one rank carries out in a step. The executor only runs actions.
#pragma once

#include <string>
#include <vector>

#include "engine/program.h"

namespace hyperparallel::engine {

// Which forward work is done again in backward instead of being kept. Only segments that belong to a region (a layer) take part.
// NOTE [Recompute]: regions are cut into runs of `every`. What a run reads from outside and what leaves it stays live; inside, a
// full run keeps discrete choices and exchange results (they are given again, not made or sent again) and makes the rest anew,
// once, just before its backward. `selective` also keeps every value whose name matches a glob of `keep`; a segment all of whose
// inputs are at hand is run again alone. Bits are those of `none` in every mix.
struct RecomputePolicy {
  enum class Mode { kNone, kFull, kSelective } mode = Mode::kNone;
  int every = 1;                  // regions per run
  std::vector<std::string> keep;  // kSelective: globs over value names, `*` spans anything
};

enum class ActionKind {
  kForward,          // segment
  kRecompute,        // segment: forward again, with its graph
  kBackward,         // segment
  kLaunch,           // exchange
  kWait,             // exchange
  kLaunchTranspose,  // exchange: gradient of the output sets out
  kWaitTranspose,    // exchange: and arrives at the input
  kGatherUnit,       // unit: compute copies of its parameters
  kReleaseUnit,      // unit
  kReduceUnit,       // unit: gradients of this micro-batch are summed over the replicas
  kReleaseValue,     // value: its last reader is done
};
const char* to_string(ActionKind kind);

struct Action {
  ActionKind kind;
  int index;                // of the segment, exchange, unit or value
  int micro_batch;          // -1 for units
  bool keep_graph = false;  // kForward: backward of this segment will follow without a recompute
};

struct ScheduleOptions {
  RecomputePolicy recompute;
  int micro_batches = 1;
  bool backward = true;                // false: forward only (validation, generation); nothing is kept
  bool release_after_forward = false;  // units are released between forward and backward and gathered again
};

// Micro-batches run one after another, each forward then backward.
std::vector<Action> build_schedule(const Program& program, const ScheduleOptions& options);

// Globs of the policy that match no value of the program.
std::vector<std::string> unmatched_keep(const Program& program, const RecomputePolicy& policy);

std::string describe(const Program& program, const std::vector<Action>& schedule);
std::string describe(const Program& program, const Action& action);  // "forward layers.3.attend #0"

}  // namespace hyperparallel::engine
