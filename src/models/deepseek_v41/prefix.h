// What the tokens of a sequence leave behind for those that follow (docs/model.md, Attention): the newest window KV, compressed
// KV and index keys, compressor inputs of a group that is not whole yet. The n-gram window of Engram is the hasher's own
// (engram_hash.h).
//
// A run of a cached program takes a batch whose documents are the new tokens of some sequences, each behind its prefix, of any
// mix of lengths; a sequence that starts has length 0. Rows of all sequences lie in shared pools, so a batch costs one gather a
// tensor.
#pragma once

#include <vector>

#include "models/deepseek_v41/program.h"

namespace hyperparallel::models::deepseek_v41 {

struct Prefix {
  struct Sequence {
    int64_t length = 0;         // tokens so far
    std::vector<int64_t> ends;  // per ModelInputs::kept: the pool row behind its last one; empty where length is 0
  };
  // Document d of the next run continues sequences[d]. They may be reordered, dropped and appended to between runs.
  std::vector<Sequence> sequences;
  std::vector<at::Tensor> pools;  // per ModelInputs::continued; none before the first run

  // Rows of the pools of one kind, an index of `inputs.kept`.
  int64_t pool_rows(const ModelInputs& inputs, size_t kept) const;
};

// The prefix after a run over `batch` that began from `before`. `outputs`: of the executor.
Prefix advance(const ModelProgram& model, const Prefix& before, const ModelBatch& batch, const engine::ValueMap& outputs);

}  // namespace hyperparallel::models::deepseek_v41
