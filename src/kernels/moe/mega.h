// A layer's experts as one plan of tasks on the multicore runtime (runtime/run.h): rows are gathered, travel to the rank that has
// their expert, meet it, travel back and are summed by token. A tile of up to 128 rows of one expert is one task from end to end
// that waits for its rows and the expert's packed weights alone; the gradients of weights are summed tile by tile, in order. The
// same bits for any number of threads.
//
//   token(r) = order[r] / k;   hidden[r] = (w1_e x[token(r)], w3_e x[token(r)]),  e the expert of row r
//   y[r] = w2_e (silu(min(gate, limit)) clamp(up, limit) weights[r])
//   out[t] = sum of y[r] over the token's k rows, plus the shared expert of x[t]        (rounded to x's type where shown: hidden,
//   y)
//
// NOTE [Overlap]: with experts on several ranks (`Peers`), rows for other ranks leave first, in two parts. Until they arrive a
// rank works on the rows of its own experts and on the shared one; rows that came go first, since others wait for what becomes of
// them; while they travel back there is the rest of the own work, in backward also the gradients of weights. A row and its
// routing weight travel together. Communication tasks take no worker's time.
#pragma once

#include <string>
#include <vector>

#include "base/aten.h"
#include "dist/group.h"

namespace hyperparallel::kernels::moe {

// w1, w3 [experts, width, d], w2 [experts, d, width], in x's type; none defined: no such experts.
struct Experts {
  at::Tensor w1, w3, w2;
};

// Like the weights, in the math type; none defined: not wanted. `is_unset`: what lies there is written over, not added to.
struct ExpertGradients {
  at::Tensor w1, w3, w2;
  bool is_unset = false;
};

// Routed experts that lie over the ranks of a group: rank g has [first_experts[g], first_experts[g + 1]).
struct Peers {
  dist::Group* group = nullptr;
  std::vector<int64_t> first_experts;  // [ranks + 1]
  at::Tensor counts;                   // int64 [ranks, own experts]: rows of each rank for each expert of this one
  std::string label;                   // of the exchanges
  double* waited = nullptr;            // seconds that the calling thread had nothing to do but wait for others are added here
};

struct Call {
  at::Tensor x;        // [tokens, d]
  at::Tensor order;    // int64 [rows], rows = tokens * k: sorted by expert (sort_rows of op.h); undefined: no routed experts
  at::Tensor offsets;  // int64 [all experts + 1]
  at::Tensor weights;  // [rows] in the math type, or undefined: ones
  int64_t k = 1;
  Experts routed, shared;  // of `routed` those of this rank, of `shared` one
  double limit = 0;        // 0: no clamp
  Peers peers = {};        // without a group: all experts are here
};

// What backward needs beside the call.
struct Kept {
  at::Tensor routed, shared;         // [rows that this rank's experts met, 2 width], [tokens, 2 width]: gate, up
  std::vector<at::Tensor> received;  // rows of other ranks with their weights, by part
};

struct Gradients {
  at::Tensor x, weights;  // like the call's
};

// Why this call cannot be taken; empty: it can.
std::string refusal(at::ScalarType type, int64_t d, int64_t width);

// How many numbers of x's type travel with a row of d to an expert elsewhere: its weight.
int64_t numbers_beside_row(at::ScalarType type);

// Where there are peers, all their ranks call these alike; they throw PeerError.
// -> [tokens, d]
at::Tensor forward(const Call& call, Kept& kept);
// dout [tokens, d]. Adds the gradients of weights to `routed` and `shared`.
Gradients backward(const Call& call, const Kept& kept, const at::Tensor& dout, const ExpertGradients& routed,
                   const ExpertGradients& shared);

}  // namespace hyperparallel::kernels::moe
