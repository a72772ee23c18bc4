// What one micro-batch gives the model, as tensors. Rows of a batch and documents of a packed row are the same thing here: tokens
// lie flattened, document after document.
#pragma once

#include <ATen/ATen.h>

namespace hyperparallel::models::deepseek_v41 {

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
};

}  // namespace hyperparallel::models::deepseek_v41
