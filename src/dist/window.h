// The memory through which a rank shows the members of one group on its host what it sends them, round by round.
//
// NOTE [Rounds through windows]: every call of a group is a number of rounds, the same on every member. In each round a member
// writes into its half `round % 2`, posts the round, waits until all members have posted it, and reads what they wrote for it.
// The two halves need no other signal: a member that has read round r writes round r + 1 over its round r - 1. Everybody had
// posted round r by then, and posts a round only after it has read the one before, so nobody still reads round r - 1. Memory
// order: `posted` is stored after the writes of its round and the reads of the round before, and loaded before the reads of its
// round and the writes of the next, all with release and acquire at least (they are sequentially consistent for the sake of
// bell.h).
#pragma once

#include <atomic>
#include <cstdint>

#include "dist/call.h"

namespace hyperparallel::dist {

struct Window {
  static constexpr int64_t kBytes = int64_t{256} << 10;  // of rows in a round
  static constexpr int kMostMembers = 256;

  struct Half {
    CallHeader header;  // the members of it that differ by reader stand in the lists
    int64_t rounds;     // that the writer needs
    int64_t rows_to[kMostMembers], rows_from[kMostMembers];
    alignas(64) char rows[kBytes];
  };
  alignas(64) std::atomic<uint64_t> posted{0};  // rounds since the start of the group
  alignas(64) Half halves[2];
};

}  // namespace hyperparallel::dist
