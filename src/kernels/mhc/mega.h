// The sites of op.h with streams that are read and written once (kernels/mhc/site.h), by blocks of tokens on the multicore
// runtime (runtime/run.h). The same bits for any number of threads.
#pragma once

#include "kernels/mhc/op.h"

namespace hyperparallel::kernels::mhc {

at::Tensor mega_expand(const at::Tensor& y, const at::Tensor& streams, const at::Tensor& post, const at::Tensor& comb);
MixIn mega_mix_in(const at::Tensor& streams, const at::Tensor& given, const MixParameters& parameters);
Boundary mega_boundary(const at::Tensor& y, const at::Tensor& streams, const at::Tensor& post, const at::Tensor& comb,
                       const at::Tensor& given, const MixParameters& parameters);

// How many numbers the gradients of a site's fn and gain take while they are summed.
int64_t gradient_numbers(int64_t n, int64_t d);
// How many sums of their own the gradients of a site's parameters have (NOTE [Parts] in mega.cpp), for plans.
int64_t gradient_parts(int64_t tokens, int64_t numbers);

}  // namespace hyperparallel::kernels::mhc
