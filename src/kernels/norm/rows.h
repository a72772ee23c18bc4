// RMSNorm over rows in memory: the loops of kernels/norm/cpu.cpp; op.h has the formula. S is float, double or Bfloat16Bits, T its
// math type.
#pragma once

#include <cstdint>

#include "kernels/storage.h"

namespace hyperparallel::kernels::norm {

// y [rows, d] and r [rows], the factor of each row; gain [d] in S.
template <class S, class T>
void forward(int64_t rows, int64_t d, double eps, const S* x, const S* gain, S* y, T* r);

// dx [rows, d] from dy [rows, d]; adds to dgain [d].
template <class S, class T>
void backward(int64_t rows, int64_t d, const S* x, const S* gain, const T* r, const S* dy, S* dx, T* dgain);

}  // namespace hyperparallel::kernels::norm
