// choose_groups of op.h by tiles of queries on the multicore runtime.
#pragma once

#include "kernels/indexer/op.h"

namespace hyperparallel::kernels::indexer {

IndexChoice choose_in_tiles(const IndexQueries& queries, const at::Tensor& keys, int64_t k, const CandidateOptions& keep,
                            const at::Tensor& pool, int64_t chunk_elements);

}  // namespace hyperparallel::kernels::indexer
