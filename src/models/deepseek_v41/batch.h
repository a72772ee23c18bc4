// What one micro-batch gives the model, as tensors. Rows of a batch and documents of a packed row are the same thing here: tokens
// lie flattened, document after document.
#pragma once

#include "base/aten.h"

#include <vector>

#include "models/adapter/tokens.h"
#include "models/deepseek_v41/engram_hash.h"

namespace hyperparallel::models::deepseek_v41 {

// Where the pictures of a micro-batch lie.
struct BatchOutline {
  int64_t tokens = 0;
  at::Tensor grids;         // int64 [images, 2]: rows and columns of patches
  at::Tensor image_starts;  // int64 [images]: index of each START token
};

struct ModelBatch {
  at::Tensor ids;          // int64 [tokens]
  at::Tensor targets;      // int64 [tokens]: the token each position is scored against, already shifted; -100 = not scored
  at::Tensor cu_seqlens;   // int64 [documents + 1]: document borders, from 0 to tokens
  at::Tensor image_mask;   // bool [tokens]: image positions (second router bias, closed Engram gate)
  at::Tensor padding;      // bool [tokens]: positions that belong to no document; counted nowhere
  at::Tensor engram_rows;  // int64 [tokens, engram layers, columns]: rows of the tables; undefined without Engram
  // Pictures, in the order of their spans; undefined for a model without a vision tower.
  at::Tensor patches;       // [patches, 3 * patch * patch]
  at::Tensor grids;         // int64 [images, 2]: rows and columns of patches
  at::Tensor image_starts;  // int64 [images]: index of each START token
  at::Tensor anchors;       // int64 [anchors], ascending: where blocks of the draft layers begin; undefined without these layers
  // Of the micro-batches that all data-parallel ranks run at the same time, by rank: their pictures are spread together. Empty
  // where this is the only one.
  std::vector<BatchOutline> outlines;
};

struct EngramLookup {
  at::Tensor rows;    // int64 [tokens, layers, columns]
  at::Tensor ngrams;  // int64 [tokens, max n-gram]: compressed ids after blocking, the current token first
};
// Hashes a whole batch: ids and cu_seqlens as above; `dead` bool [tokens]: image positions.
EngramLookup hash_tokens(const EngramHasher& hasher, const at::Tensor& ids, const at::Tensor& dead, const at::Tensor& cu_seqlens);

}  // namespace hyperparallel::models::deepseek_v41
