// A layer's experts as one plan of tasks on the multicore runtime (runtime/run.h): rows are gathered, meet their expert and are
// summed by token without copies of them in between. A tile of up to 128 rows of one expert is one task from end to end; an
// expert's tiles wait for its packed weights alone, and the gradients of its weights are summed tile by tile, in order. The same
// bits for any number of threads.
//
//   token(r) = order[r] / k;   hidden[r] = (w1_e x[token(r)], w3_e x[token(r)]),  e the expert of row r
//   y[r] = w2_e (silu(min(gate, limit)) clamp(up, limit) weights[r])
//   out[t] = sum of y[r] over the token's k rows, plus the shared expert of x[t]        (rounded to x's type where shown: hidden,
//   y)
#pragma once

#include <string>

#include "base/aten.h"

namespace hyperparallel::kernels::moe {

// w1, w3 [experts, width, d], w2 [experts, d, width], in x's type; none defined: no such experts.
struct Experts {
  at::Tensor w1, w3, w2;
};

struct Call {
  at::Tensor x;        // [tokens, d]
  at::Tensor order;    // int64 [rows], rows = tokens * k: sorted by expert (sort_rows of op.h); undefined: no routed experts
  at::Tensor offsets;  // int64 [experts + 1]
  at::Tensor weights;  // [rows] in the math type, or undefined: ones
  int64_t k = 1;
  Experts routed, shared;  // of `shared` one
  double limit = 0;        // 0: no clamp
};

// What backward needs beside the call.
struct Kept {
  at::Tensor routed, shared;  // [rows, 2 width], [tokens, 2 width]: gate, up
};

struct Gradients {
  at::Tensor x, weights;  // like the call's
};

// Why this call cannot be taken; empty: it can.
std::string refusal(at::ScalarType type, int64_t d, int64_t width);

// -> [tokens, d]
at::Tensor forward(const Call& call, Kept& kept);
// dout [tokens, d]. Adds the gradients of weights to `routed` and `shared`, in the math type; undefined ones are not wanted.
Gradients backward(const Call& call, const Kept& kept, const at::Tensor& dout, const Experts& routed, const Experts& shared);

}  // namespace hyperparallel::kernels::moe
