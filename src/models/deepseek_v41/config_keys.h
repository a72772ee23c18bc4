// The keys of `text_config` and `vision_config`, each declared once: reading and writing both visit these lists
// (models/adapter/config_reader.h).
#pragma once

#include "models/adapter/config_reader.h"
#include "models/deepseek_v41/config.h"

namespace hyperparallel::models::deepseek_v41 {

template <class Visitor, class Text>
void visit_text(Visitor& visit, Text&& c) {
  visit.required("vocab_size", c.vocab_size, kPositive);
  visit.required("hidden_size", c.hidden_size, kPositive);
  visit.required("moe_intermediate_size", c.moe_intermediate_size, kPositive);
  visit.required("num_hidden_layers", c.num_hidden_layers, kLayers);
  visit.required("num_attention_heads", c.num_attention_heads, kPositive);
  visit.fixed("num_key_value_heads", int64_t{1});
  visit.required("head_dim", c.head_dim, kPositive);
  visit.required("qk_rope_head_dim", c.qk_rope_head_dim, kPositive);
  visit.required("q_lora_rank", c.q_lora_rank, kPositive);
  visit.required("o_lora_rank", c.o_lora_rank, kPositive);
  visit.required("o_groups", c.o_groups, kPositive);
  visit.fixed("hidden_act", std::string("silu"));
  visit.optional("swiglu_limit", c.swiglu_limit, kFrom0);
  visit.optional("rms_norm_eps", c.rms_norm_eps, kFrom0);
  visit.fixed("attention_bias", false);
  visit.fixed("attention_dropout", 0.0);
  visit.optional("initializer_range", c.initializer_range, kFrom0);
  visit.required("max_position_embeddings", c.max_position_embeddings, kPositive);
  visit.required("n_routed_experts", c.n_routed_experts, kPositive);
  visit.fixed("n_shared_experts", int64_t{1});
  visit.required("num_experts_per_tok", c.num_experts_per_tok, kPositive);
  visit.fixed("scoring_func", std::string("sqrtsoftplus"));
  visit.fixed("topk_method", std::string("noaux_tc"));
  visit.optional("gate_temp", c.gate_temp, kAbove0);
  visit.optional("norm_topk_prob", c.norm_topk_prob);
  visit.optional("routed_scaling_factor", c.routed_scaling_factor, kAbove0);
  visit.required("sliding_window", c.sliding_window, kPositive);
  visit.required("compress_ratios", c.compress_ratios, yaml::Range{.min = 0, .max = 1e6});
  visit.optional("kv_source_layer_ids", c.kv_source_layer_ids, kNotNegative);
  visit.optional("index_source_layer_ids", c.index_source_layer_ids, kNotNegative);
  visit.optional("index_n_heads", c.index_n_heads, kNotNegative);
  visit.optional("index_head_dim", c.index_head_dim, kNotNegative);
  visit.optional("index_topk", c.index_topk, kNotNegative);
  visit.optional("candidate_topk_blocks", c.candidate_topk_blocks, kNotNegative);
  visit.optional("candidate_block_size", c.candidate_block_size, kNotNegative);
  visit.required("hc_mult", c.hc_mult, kDegree);
  visit.required("hc_sinkhorn_iters", c.hc_sinkhorn_iters, kDegree);
  visit.optional("hc_eps", c.hc_eps, kFrom0);
  visit.optional("engram_layer_ids", c.engram_layer_ids, kNotNegative);
  visit.optional("engram_num_embeddings", c.engram_num_embeddings, kPositive);
  visit.optional("engram_vocab_size", c.engram_vocab_size, yaml::Range{.min = 0, .max = 1e9});
  visit.optional("engram_max_ngram_size", c.engram_max_ngram_size, yaml::Range{.min = 0, .max = 16});
  visit.optional("engram_n_heads", c.engram_n_heads, yaml::Range{.min = 0, .max = 1024});
  visit.optional("engram_head_dim", c.engram_head_dim, kNotNegative);
  visit.optional("engram_pad_id", c.engram_pad_id, kNotNegative);
  visit.optional("engram_compressed_vocab_size", c.engram_compressed_vocab_size, kNotNegative);
  visit.optional("num_nextn_predict_layers", c.num_nextn_predict_layers, yaml::Range{.min = 0, .max = 1024});
}

template <class Visitor, class Draft>
void visit_draft(Visitor& visit, Draft&& c) {
  visit.optional("dspark_block_size", c.block_size, kNotNegative);
  visit.optional("dspark_noise_token_id", c.noise_token_id, kNotNegative);
  visit.optional("dspark_target_layer_ids", c.target_layer_ids, kNotNegative);
  visit.optional("dspark_markov_rank", c.markov_rank, kNotNegative);
  visit.optional("dspark_n_routed_experts", c.n_routed_experts, kNotNegative);
  visit.optional("dspark_num_experts_per_tok", c.num_experts_per_tok, kNotNegative);
}

// Keys that a composite file may carry at its root, in `text_config`, or in both.
template <class Visitor, class Text>
void visit_shared(Visitor& visit, Text&& c) {
  visit.optional("tie_word_embeddings", c.tie_word_embeddings);
  visit.optional("bos_token_id", c.bos_token_id, kNotNegative);
  visit.optional("eos_token_id", c.eos_token_id, kNotNegative);
  visit.optional("pad_token_id", c.pad_token_id, kNotNegative);
}

template <class Visitor, class Vision>
void visit_vision(Visitor& visit, Vision&& c) {
  visit.required("num_hidden_layers", c.num_hidden_layers, kPositive);
  visit.required("hidden_size", c.hidden_size, kPositive);
  visit.required("num_attention_heads", c.num_attention_heads, kPositive);
  visit.required("intermediate_size", c.intermediate_size, kPositive);
  visit.optional("patch_size", c.patch_size, kPositive);
  visit.optional("rope_theta", c.rope_theta, kAbove0);
  visit.optional("downsample_ratio", c.downsample_ratio, kPositive);
  visit.optional("max_image_tokens", c.max_image_tokens, yaml::Range{.min = 4, .max = 1e9});
  visit.optional("min_pixels", c.min_pixels, yaml::Range{.min = 0, .max = 1e9});
  visit.optional("max_wh_ratio", c.max_wh_ratio, kAbove0);
}

}  // namespace hyperparallel::models::deepseek_v41
