// Sums and maxima of several arrays, element by element in a fixed order: the same bits in every communicator.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <span>

namespace hyperparallel::dist {

enum class Reduction : int32_t { kSum, kMax };

// out[i] = parts[0][i] + parts[1][i] + ... for i < count, added from left to right: in FP32 for BF16 and FP16, rounded once at
// the end, else in the type itself (bool: or). A maximum with a NaN is NaN. `out` is none of the parts. Throws InternalError for
// complex and quantised types.
void reduce_elements(void* out, std::span<const void* const> parts, int64_t count, c10::ScalarType type, Reduction reduction);

}  // namespace hyperparallel::dist
