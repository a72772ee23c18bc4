// Rotary positions of the text model: the LAST `rope_dim` channels, adjacent pairs (2i, 2i+1) as one complex number. Rules:
// docs/model.md, Rotary positions.
//
//   rotate(x, cos, sin)[..., 2i]   = x[2i] * cos[i] - x[2i+1] * sin[i]
//   rotate(x, cos, sin)[..., 2i+1] = x[2i+1] * cos[i] + x[2i] * sin[i]
//
// Tables and products are FP32 (FP64 for FP64 tensors); the frequencies are FP32 numbers in either.
#pragma once

#include "base/aten.h"

#include <vector>

namespace hyperparallel::kernels {

// Frequencies [dim / 2] of a plain table, or of YaRN with the ramp limits rounded outwards and clamped to [0, dim - 1].
std::vector<double> rope_frequencies(int64_t dim, double theta);
std::vector<double> yarn_frequencies(int64_t dim, double theta, double factor, double beta_fast, double beta_slow,
                                     int64_t original_max_position_embeddings);

struct RopeTable {
  at::Tensor cos, sin;  // [tokens, dim / 2] in the math type
};
// positions int64 [tokens].
RopeTable rope_table(const at::Tensor& positions, const std::vector<double>& frequencies, at::ScalarType math);

// x [tokens, ..., channels] -> the same; `inverse` rotates back (conjugate). One pass over x; keeps the table alone for backward.
at::Tensor apply_rope(const at::Tensor& x, const RopeTable& table, bool inverse = false);
// The same by library operations, for tests: the same bits.
at::Tensor apply_rope_reference(const at::Tensor& x, const RopeTable& table, bool inverse = false);

// The other order of channels, that of Hugging Face's Llama: x [tokens, ..., dim], pairs (i, i + dim / 2) -> the same.
at::Tensor apply_rope_halves(const at::Tensor& x, const RopeTable& table);

}  // namespace hyperparallel::kernels
