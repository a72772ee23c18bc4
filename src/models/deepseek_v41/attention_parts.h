// What the attention of layers and of draft layers has in common: docs/model.md, Attention.
#pragma once

#include <string>

#include "engine/executor.h"
#include "kernels/attention/op.h"
#include "kernels/rope/op.h"
#include "models/deepseek_v41/builder.h"

namespace hyperparallel::models::deepseek_v41 {

kernels::RopeTable table_of(engine::SegmentRun& run, const RopeValues& rope);

// Heads or groups are updated as matrices for themselves (V4.1 report 2.5).
engine::UpdateHint update_by(const std::string& name, int64_t count, int64_t rows);

// Rows that came from other ranks behind one's own.
at::Tensor with_received(const at::Tensor& own, const at::Tensor& received);
// Own and received window keys in the order of their tokens. Without received rows own ones are in order already.
at::Tensor arranged_keys(const at::Tensor& own, const at::Tensor& received, const at::Tensor& rows);

// Of every layer's sparse attention.
kernels::AttentionShape attention_shape(ModelBuilder& builder);

// The segment `NAME.queries` of this rank's heads, for x [rows, hidden] of the region `tokens`.
struct QueryValues {
  engine::ValueId residual;  // [rows, q_lora_rank]
  engine::ValueId q;         // [rows, heads, head_dim], rotated
};
QueryValues add_queries(ModelBuilder& builder, const std::string& name, const std::string& prefix, engine::ValueId x,
                        const RopeValues& rope);

// Parameters of what comes after the keys, to be used in one segment.
struct AttentionOutput {
  engine::ParameterId sink, wo_a, wo_b;
  int64_t blocks = 0, width = 0;  // of this rank: output groups; channels of its heads in each

  // mixed [rows, heads, head_dim], rotated back here -> [rows, hidden], this rank's part of a sum over tp.
  at::Tensor operator()(engine::SegmentRun& run, const at::Tensor& mixed, const kernels::RopeTable& rope) const;
};
AttentionOutput add_attention_output(ModelBuilder& builder, const std::string& prefix);

}  // namespace hyperparallel::models::deepseek_v41
