// The indexer's loss over all groups that a query sees, for the dense stage before it chooses any (loss.h has the sparse one):
//
//   student(t, .) = softmax over visible groups of score(t, g)                                      score: op.h
//   teacher(t, .) = sum over heads of the attention on them, divided by its sum                     attention/op.h
//   loss          = sum over t, where counted[t], of sum over groups of teacher (log teacher - log student)
//
// Forward derives as well, in chunks of queries that hold at most 8 Mi products, so that nothing of size tokens x groups is ever
// formed; backward only scales.
#pragma once

#include "kernels/attention/op.h"
#include "kernels/indexer/op.h"

namespace hyperparallel::kernels {

// The attention that is followed; as of dense_attention. All constant.
struct DenseTeacher {
  at::Tensor q, window_kv, compressed_kv, sink, row, start;
  AttentionShape shape;
  bool windowed = false;  // the softmax is over the window's keys as well
};

// A scalar in the math type. counted: bool [tokens]. Differentiable in queries.q, queries.weights and keys. Where heads lie on
// several ranks (queries.sum), all call it alike and get the same loss; gradients are those of a rank's own heads.
at::Tensor dense_indexer_loss(const IndexQueries& queries, const at::Tensor& keys, const DenseTeacher& teacher,
                              const at::Tensor& counted);

}  // namespace hyperparallel::kernels
