// Every operation of a group against plain loops, bit by bit. Runs on any communicator: threads in dist_test, processes in
// mpi_check. Inputs follow from the rank alone, so every rank knows what the others send.
#pragma once

#include "base/aten.h"

#include "dist/group.h"

namespace hyperparallel::dist {

// Values of one rank, the same wherever they are asked for. With `strided`, the last two dimensions lie transposed in memory.
at::Tensor values_of(int rank, const std::vector<int64_t>& shape, at::ScalarType type, int salt, bool strided = false);

// The sum in rank order by scalar loops: FP32 for BF16, else in the type itself.
at::Tensor plain_sum(const std::vector<at::Tensor>& parts);

bool same_bits(const at::Tensor& a, const at::Tensor& b);

// Throws std::runtime_error with the operation, type and sizes at the first difference. Every rank of the group calls it.
void check_operations(Group& group);

}  // namespace hyperparallel::dist
