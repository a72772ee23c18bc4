#include "models/deepseek_v41/flops.h"

#include <algorithm>

namespace hyperparallel::models::deepseek_v41 {
namespace {

struct LayerCost {
  double weights = 0;        // multiply-adds a token with trained weights
  double index_weights = 0;  // multiply-adds a token of the indexer's projections
  double per_key = 0;        // multiply-adds a (query, key) pair of attention
  double per_score = 0;      // multiply-adds a (query, group) pair of the indexer
};

LayerCost cost_of(const TextConfig& text, int64_t layer) {
  const double d = text.hidden_size, hd = text.head_dim, heads = text.num_attention_heads, n = text.hc_mult,
               ratio = text.ratio(layer);
  LayerCost cost;
  cost.weights = d * text.q_lora_rank + text.q_lora_rank * heads * hd + d * hd + heads * hd * text.o_lora_rank +
                 text.o_groups * text.o_lora_rank * d;
  if (text.is_kv_source(layer)) cost.weights += d * hd * (ratio > 1 ? 2 : 1);
  cost.weights += 2 * (2 + n) * n * n * d;  // mHC coefficients of both sites
  cost.weights += d * text.n_routed_experts + 3 * d * text.moe_intermediate_size * (text.num_experts_per_tok + 1);
  if (text.engram_index(layer)) cost.weights += (n + 1) * d * text.engram_columns() * text.engram_head_dim;
  if (text.is_index_source(layer)) {
    cost.index_weights = text.q_lora_rank * text.index_n_heads * text.index_head_dim + d * text.index_n_heads;
    if (text.is_kv_source(layer)) cost.index_weights += hd * text.index_head_dim / ratio;
    cost.per_score = text.index_n_heads * text.index_head_dim;
  }
  cost.per_key = 2 * heads * hd;  // logits and values
  return cost;
}

double vision_flops(const VisionConfig& vision, int64_t hidden, const data::MicroBatch& batch) {
  const double w = vision.hidden_size, area = vision.downsample_ratio * vision.downsample_ratio;
  const double patch = 3.0 * vision.patch_size * vision.patch_size * w;
  const double block = 4 * w * w + 3 * w * vision.intermediate_size;
  double forward = 0;
  for (const data::ImagePatches& image : batch.images) {
    const double patches = static_cast<double>(image.rows * image.columns);
    const double aligned = static_cast<double>(((image.rows + vision.downsample_ratio - 1) / vision.downsample_ratio) *
                                               ((image.columns + vision.downsample_ratio - 1) / vision.downsample_ratio));
    forward += patches * (patch + vision.num_hidden_layers * (block + 2 * patches * w)) +
               aligned * (w * area * hidden + hidden * hidden);
  }
  return 6 * forward;
}

}  // namespace

double needed_flops(const ModelConfig& config, const data::MicroBatch& batch) {
  const TextConfig& text = config.text;
  double trained = static_cast<double>(batch.supervised_tokens) * text.vocab_size * text.hidden_size, forward_only = 0;
  for (int64_t layer = 0; layer < text.num_hidden_layers; ++layer) {
    const LayerCost cost = cost_of(text, layer);
    const int64_t ratio = text.ratio(layer);
    double tokens = 0, keys = 0, scores = 0;
    for (size_t t = 0; t < batch.input_ids.size(); ++t) {
      if (batch.padding[t] != 0) continue;
      const int64_t seen = batch.position_ids[t] + 1, groups = ratio > 0 ? seen / ratio : 0;
      tokens += 1;
      keys += static_cast<double>(std::min(seen, text.sliding_window) + std::min(groups, text.index_topk));
      scores += static_cast<double>(groups);
    }
    trained += tokens * cost.weights + keys * cost.per_key;
    forward_only += tokens * cost.index_weights + scores * cost.per_score;
  }
  return 6 * trained + 2 * forward_only + (config.vision ? vision_flops(*config.vision, text.hidden_size, batch) : 0);
}

}  // namespace hyperparallel::models::deepseek_v41
