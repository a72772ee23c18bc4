// The lightning indexer: scores compressed groups for every query and chooses the best. Discrete: no gradient. Rules:
// docs/model.md, Attention.
//
//   score(t, g) = sum_h relu(q[t, h] . k[g]) * d^-0.5 * w[t, h] * heads^-0.5          FP32
//   visible(t)  = groups first[t] .. first[t] + count[t] - 1
//   topk(t)     = the `k` best visible groups (fewer visible: all of them), the smaller index first among equals; ascending, then
//   -1
//
// Blocks: `block_size` consecutive groups of a document, counted from its first group; the last may be short.
//   candidates(t) = the `blocks` best blocks by their best visible score; the block of the newest visible group is always one of
//   them;
//                   a block without a visible group never is. Ascending, then -1.
#pragma once

#include "base/aten.h"

#include <functional>

#include "kernels/choice.h"

namespace hyperparallel::kernels {

struct IndexQueries {
  at::Tensor q;        // [tokens, heads, d]
  at::Tensor weights;  // [tokens, heads]: weights_proj(x), unscaled
  at::Tensor first;    // int64 [tokens]: the first group of the token's document
  at::Tensor count;    // int64 [tokens]: how many of its groups are visible
  // Where the heads lie on several ranks: their number in all (0: those of q), and the sum of scores over the ranks, called for
  // the same chunks on all of them.
  int64_t heads = 0;
  std::function<at::Tensor(const at::Tensor&)> sum = {};

  double scale() const;  // d^-0.5 * heads^-0.5 of the scores
};

struct IndexChoice {
  at::Tensor topk;        // int32 [tokens, k], global group numbers
  at::Tensor candidates;  // int32 [tokens, blocks], block numbers within the document; undefined unless asked for
};

struct CandidateOptions {
  int64_t blocks = 0;  // how many blocks a query keeps; 0: no pool
  int64_t block_size = 0;
};

// `keys` [groups, d]. With `pool` defined (int32 [tokens, blocks]) only its blocks may be chosen; with `keep.blocks` > 0 and no
// pool the candidates are chosen too, from the same scores, without restricting topk.
// The reference holds the scores of at most 256 queries, at most `chunk_elements` of them over all heads. kMega holds those of a
// few queries and 64 groups at a time, and skips what no pool has (tiles.cpp); only where `queries.sum` is set are there chunks
// of `chunk_elements` scores, which are summed. The same result for any number of threads.
IndexChoice choose_groups(const IndexQueries& queries, const at::Tensor& keys, int64_t k, const CandidateOptions& keep,
                          const at::Tensor& pool, int64_t chunk_elements, Implementation how = Implementation::kMega);

// Which implementations take queries [tokens, heads, d] of this type.
std::vector<Candidate> index_candidates(at::ScalarType type, int64_t d);

// All scores before any mask, [tokens, groups]: for checking only, never formed by choose_groups.
at::Tensor index_scores(const IndexQueries& queries, const at::Tensor& keys);

}  // namespace hyperparallel::kernels
