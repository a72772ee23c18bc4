// Weights as segments see them. The functions here save the handle of a weight for backward, not the tensor, so that a released
// unit is really gone, and add the weight's gradient straight into its slot in the master type.
//
// NOTE [Anchor]: autograd runs a node only when something behind it asks for a gradient. A segment whose inputs carry none (an
// embedding of ids) would never reach its weight; so every handle brings the segment's anchor, a scalar leaf that does.
#pragma once

#include "base/aten.h"

#include "dist/group.h"
#include "engine/parameter.h"

namespace hyperparallel::engine {

struct Weight {
  ParameterStore* store = nullptr;
  ParameterId id;
  at::Tensor anchor;  // requires grad while the segment records a graph

  const at::Tensor& value() const { return store->compute(id); }
  bool trainable() const { return store->trainable(id); }
};

// x [..., in], weight [out, in] -> [..., out] in x's type. A weight of another type is cast to x's.
at::Tensor linear(const at::Tensor& x, const Weight& weight);

// Block-diagonal product: x [tokens, blocks, in], weight [blocks * out, in] -> [tokens, blocks * out].
at::Tensor block_linear(const at::Tensor& x, const Weight& weight);

// Ragged product: rows offsets[e] .. offsets[e+1] of x [rows, in] meet weight[e] of [groups, out, in] -> [rows, out].
// offsets: int64 [groups + 1] on the CPU, from 0 to rows, not falling. A group without rows is fine: its gradient is zero.
at::Tensor grouped_linear(const at::Tensor& x, const at::Tensor& offsets, const Weight& weight);

// ids int64 [n], weight [rows, width] -> [n, width]. A negative id gives a row of zeros and no gradient.
at::Tensor embedding(const at::Tensor& ids, const Weight& weight);

// The same of a table (ParameterUse::kTable), in `type`; ids are numbers of owned rows.
at::Tensor table_rows(const at::Tensor& ids, const Weight& table, at::ScalarType type);

// The rows of the vocabulary that a rank has: they begin at `first`, and the ranks of `group` have all of them.
struct VocabularyPart {
  dist::Group* group = nullptr;  // nullptr: this rank has all
  int64_t first = 0;
};

struct CrossEntropy {
  at::Tensor sum;         // of the scored tokens' losses: a scalar, differentiable
  at::Tensor squares;     // of log(sum of exp), likewise (z-loss)
  at::Tensor token_loss;  // [tokens], 0 where not scored; constant
};

// Cross-entropy of hidden @ weight^T against targets, without ever holding the logits of more than `chunk` rows.
// hidden [tokens, width], equal on all ranks of the part's group; targets int64 [tokens], -100 = not scored; weight [the part's
// rows, width] -> in FP32 (FP64), equal on all ranks. The product runs in hidden's type, the rest in FP32. The gradient of hidden
// is this rank's part of a sum over the group. Communicates in forward, once for each chunk.
// Where a gradient will be asked for, forward derives each chunk at once, so that its logits are formed a single time: by
// sum + z * squares. Backward only scales; the gradient of `squares` must be z times that of `sum`, else InternalError.
CrossEntropy linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& targets, const Weight& weight, int64_t chunk,
                                  const VocabularyPart& part = {}, double z = 0);

}  // namespace hyperparallel::engine
