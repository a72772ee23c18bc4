// What one rank asks of its group, as data: the part that all communicators (group of one, threads, MPI) share. Users of groups
// need dist/group.h only.
//
// Every operation is the same pairwise exchange: each rank has rows for each member and expects rows from each member; what
// arrived is concatenated or added in rank order. A `CallHeader` says to one peer what this rank called; two headers that do not
// fit are a mismatch, which is found before any data moves.
#pragma once

#include "base/aten.h"

#include <cstdint>
#include <string>
#include <vector>

#include "dist/reduction.h"

namespace hyperparallel::dist {

enum class Operation : int32_t { kAllGather, kReduceScatter, kAllReduce, kAllToAll, kBroadcast, kBarrier, kSend, kReceive };

constexpr int64_t kLargeSum = 16 << 10;  // bytes from which each rank sums a piece of an all_reduce and hands it to the others

struct Call {
  Operation operation;
  std::string label;
  at::Tensor input;                   // contiguous, at least one dimension: the rows this rank sends
  std::vector<int64_t> shape;         // as the caller sees its tensor: for messages
  std::vector<int64_t> send_rows;     // by member
  std::vector<int64_t> receive_rows;  // by member
  std::vector<int64_t> result_shape;  // [sum of receive_rows or one member's rows, ...]
  bool same_rows_for_all = false;     // every member gets the first rows of `input`; else consecutive ones
  Reduction reduction = Reduction::kSum;
  int peer = -1;         // root of a broadcast, other end of a send or receive: rank in the group
  int64_t sequence = 0;  // number of the call in its group (send and receive: between its two ends), set by the group

  bool point_to_point() const { return operation == Operation::kSend || operation == Operation::kReceive; }
  bool reduces() const { return operation == Operation::kReduceScatter || operation == Operation::kAllReduce; }
};

// The rows of `call.input` that go to a member: a view.
at::Tensor part_for(const Call& call, int member);

// The sum (or maximum) of contiguous tensors of one shape, in the order given (dist/reduction.h).
at::Tensor reduce_in_order(const std::vector<at::Tensor>& parts, Reduction reduction);

// The result of a call from what every member sent to this rank, in rank order. A single part is handed back as it is.
at::Tensor combine(const Call& call, const std::vector<at::Tensor>& parts);

// What a rank called, as told to one peer. Plain bytes, so that it can be sent.
struct CallHeader {
  Operation operation;
  int32_t dtype;
  Reduction reduction;
  int32_t peer;
  int64_t sequence;
  int64_t rows_to_you, rows_from_you;
  int32_t dims;
  int64_t shape[8];
  char label[128];  // ends with 0; longer ones are cut
};

CallHeader header_for(const Call& call, int member);

// What makes the calls of two ranks not fit ("label"), or an empty string.
std::string mismatch(const CallHeader& mine, const CallHeader& theirs);

// For example: all_gather "layer3.kv" #12, Float [3, 4]
std::string describe(const CallHeader& header);

}  // namespace hyperparallel::dist
