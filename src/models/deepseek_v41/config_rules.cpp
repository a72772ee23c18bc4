#include "models/deepseek_v41/config_rules.h"
#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "models/deepseek_v41/engram_hash.h"

namespace hyperparallel::models::deepseek_v41 {
namespace {

using Ids = std::vector<int64_t>;

bool contains(const Ids& ids, int64_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

// Layer lists ascend, without repeats, inside the model. Returns whether that holds.
bool check_layer_ids(const TextConfig& c, const char* key, const Ids& ids, const Complain& complain) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= c.num_hidden_layers) {
      complain(key, fmt::format("layer {} does not exist, num_hidden_layers is {}", ids[i], c.num_hidden_layers));
      return false;
    }
    if (i > 0 && ids[i] <= ids[i - 1]) {
      complain(key, fmt::format("layers must ascend without repeats, found {} after {}", ids[i], ids[i - 1]));
      return false;
    }
  }
  return true;
}

void check_positive(const char* key, int64_t value, const char* why, const Complain& complain) {
  if (value <= 0) complain(key, fmt::format("expected at least 1 since {}, found {}", why, value));
}

void check_attention(const TextConfig& c, const Complain& complain) {
  if (c.o_groups > 0 && c.num_attention_heads % c.o_groups != 0) {
    std::string accepted;
    for (int64_t n = 1; n <= c.num_attention_heads; ++n) {
      if (c.num_attention_heads % n == 0) accepted += (accepted.empty() ? "" : ", ") + std::to_string(n);
    }
    complain("o_groups",
             fmt::format("{} does not divide num_attention_heads {}; accepted: {}", c.o_groups, c.num_attention_heads, accepted));
  }
  if (c.qk_rope_head_dim % 2 != 0)
    complain("qk_rope_head_dim", fmt::format("expected an even number, found {}", c.qk_rope_head_dim));
  if (c.qk_rope_head_dim > c.head_dim) {
    complain("qk_rope_head_dim", fmt::format("{} is larger than head_dim {}", c.qk_rope_head_dim, c.head_dim));
  }
}

// Every compressed layer reads a KV source at or before it of the same ratio.
void check_layer_sources(const TextConfig& c, const Complain& complain) {
  int64_t source = -1;
  for (int64_t layer = 0; layer < c.num_hidden_layers; ++layer) {
    if (contains(c.kv_source_layer_ids, layer)) source = layer;
    const int64_t ratio = c.compress_ratios[layer];
    if (ratio == 0) continue;
    if (source < 0) {
      complain("compress_ratios", fmt::format("layer {} has ratio {} and no KV source at or before it", layer, ratio));
    } else if (c.compress_ratios[source] != ratio) {
      complain("compress_ratios", fmt::format("layer {} has ratio {}, but its KV source, layer {}, has ratio {}", layer, ratio,
                                              source, c.compress_ratios[source]));
    }
  }
}

void check_sources(const TextConfig& c, const Complain& complain) {
  const auto given = static_cast<int64_t>(c.compress_ratios.size());
  if (given != c.num_hidden_layers && given != c.num_hidden_layers + c.num_nextn_predict_layers) {
    complain(
        "compress_ratios",
        fmt::format("has {} entries, expected one for each of {} layers{}", given, c.num_hidden_layers,
                    c.num_nextn_predict_layers == 0 ? "" : fmt::format(" (and of {} draft layers)", c.num_nextn_predict_layers)));
    return;
  }
  bool sound = check_layer_ids(c, "kv_source_layer_ids", c.kv_source_layer_ids, complain);
  sound = check_layer_ids(c, "index_source_layer_ids", c.index_source_layer_ids, complain) && sound;
  if (!sound) return;
  for (int64_t layer : c.kv_source_layer_ids) {
    if (!contains(c.index_source_layer_ids, layer)) {
      complain("kv_source_layer_ids",
               fmt::format("layer {} is not in index_source_layer_ids; every KV source is an index source", layer));
    }
  }
  for (int64_t layer : c.index_source_layer_ids) {
    if (c.compress_ratios[layer] == 0) {
      complain("index_source_layer_ids", fmt::format("layer {} has compress ratio 0 and can be no source", layer));
    }
  }
  check_layer_sources(c, complain);
}

void check_index(const TextConfig& c, const Complain& complain) {
  if (!c.index_source_layer_ids.empty()) {
    constexpr const char* kWhy = "index_source_layer_ids is not empty";
    check_positive("index_n_heads", c.index_n_heads, kWhy, complain);
    check_positive("index_head_dim", c.index_head_dim, kWhy, complain);
    check_positive("index_topk", c.index_topk, kWhy, complain);
    if (c.index_head_dim > 0 && c.qk_rope_head_dim > c.index_head_dim) {
      complain("index_head_dim", fmt::format("{} is smaller than qk_rope_head_dim {}", c.index_head_dim, c.qk_rope_head_dim));
    }
  }
  if (c.candidate_source_layer_id < 0) return;
  if (c.kv_source_layer_ids.empty() || c.kv_source_layer_ids.back() != c.candidate_source_layer_id) {
    complain("candidate_source_layer_id",
             fmt::format("expected the last KV source{}, or -1 for no candidate pool, found {}",
                         c.kv_source_layer_ids.empty() ? " (there is none)" : fmt::format(" {}", c.kv_source_layer_ids.back()),
                         c.candidate_source_layer_id));
  }
  constexpr const char* kWhy = "the candidate pool is on (candidate_source_layer_id)";
  check_positive("candidate_topk_blocks", c.candidate_topk_blocks, kWhy, complain);
  check_positive("candidate_block_size", c.candidate_block_size, kWhy, complain);
}

// Rows of each table against the primes that index it.
void check_engram_rows(const TextConfig& c, const Complain& complain) {
  const auto primes = engram_primes(c.engram_vocab_size, static_cast<int64_t>(c.engram_layer_ids.size()), c.engram_columns());
  for (size_t i = 0; i < primes.size(); ++i) {
    const int64_t needed = std::accumulate(primes[i].begin(), primes[i].end(), int64_t{0});
    if (c.engram_num_embeddings[i] < needed) {
      complain("engram_num_embeddings", fmt::format("{} rows of layer {} are fewer than the {} that its hashes reach",
                                                    c.engram_num_embeddings[i], c.engram_layer_ids[i], needed));
    }
  }
}

void check_engram(const TextConfig& c, const Complain& complain) {
  if (c.engram_num_embeddings.size() != c.engram_layer_ids.size()) {
    complain("engram_num_embeddings",
             fmt::format("has {} entries, engram_layer_ids has {}", c.engram_num_embeddings.size(), c.engram_layer_ids.size()));
    return;
  }
  if (c.engram_layer_ids.empty() || !check_layer_ids(c, "engram_layer_ids", c.engram_layer_ids, complain)) return;
  constexpr const char* kWhy = "engram_layer_ids is not empty";
  check_positive("engram_vocab_size", c.engram_vocab_size, kWhy, complain);
  check_positive("engram_n_heads", c.engram_n_heads, kWhy, complain);
  check_positive("engram_head_dim", c.engram_head_dim, kWhy, complain);
  check_positive("engram_compressed_vocab_size", c.engram_compressed_vocab_size, kWhy, complain);
  if (c.engram_max_ngram_size < 2) {
    complain("engram_max_ngram_size", fmt::format("expected at least 2 since {}, found {}", kWhy, c.engram_max_ngram_size));
  }
  if (c.engram_compressed_vocab_size > c.vocab_size) {
    complain("engram_compressed_vocab_size",
             fmt::format("{} is larger than vocab_size {}", c.engram_compressed_vocab_size, c.vocab_size));
  }
  if (c.engram_pad_id >= c.vocab_size) {
    complain("engram_pad_id", fmt::format("{} is outside the vocabulary of {}", c.engram_pad_id, c.vocab_size));
  }
  if (c.engram_vocab_size > 0 && c.engram_n_heads > 0 && c.engram_max_ngram_size >= 2) check_engram_rows(c, complain);
}

}  // namespace

void check_text(const TextConfig& c, const Complain& complain) {
  check_attention(c, complain);
  check_sources(c, complain);
  check_index(c, complain);
  check_engram(c, complain);
  if (c.num_experts_per_tok > c.n_routed_experts) {
    complain("num_experts_per_tok",
             fmt::format("{} is more than n_routed_experts {}", c.num_experts_per_tok, c.n_routed_experts));
  }
  const std::pair<const char*, int64_t> ids[] = {
      {"bos_token_id", c.bos_token_id}, {"eos_token_id", c.eos_token_id}, {"pad_token_id", c.pad_token_id}};
  for (const auto& [key, id] : ids) {
    if (id >= c.vocab_size) complain(key, fmt::format("{} is outside the vocabulary of {}", id, c.vocab_size));
  }
}

void check_vision(const VisionConfig& c, const Complain& complain) {
  if (c.num_attention_heads > 0 && c.hidden_size % (4 * c.num_attention_heads) != 0) {
    complain("hidden_size", fmt::format("{} is not a multiple of 4 num_attention_heads = {}; the rotary table of a head needs it",
                                        c.hidden_size, 4 * c.num_attention_heads));
  }
}

}  // namespace hyperparallel::models::deepseek_v41
