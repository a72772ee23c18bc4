#include "models/deepseek_v41/crop.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "base/error.h"
#include "models/deepseek_v41/config_rules.h"
#include "models/deepseek_v41/engram_hash.h"

namespace hyperparallel::models::deepseek_v41 {
namespace {

// n * part / whole, rounded, at least 1.
int64_t scaled(int64_t n, int64_t part, int64_t whole) {
  return whole == 0 || n == 0 ? n : std::max<int64_t>(1, (n * part + whole / 2) / whole);
}

int64_t nearest_multiple(int64_t n, int64_t of) {
  return std::max(of, (n + of / 2) / of * of);
}

// NOTE [What follows]: sizes that are not given keep their proportion to the one they hang on.
//   hidden size     MoE width, heads, low ranks, Engram rows and width, Markov rank, the tower's width
//   heads           index heads; heads that are not given are a multiple of the output groups, and of heads that are given the
//                   groups are the largest common divisor
//   head width      rotary channels, an even number that the index heads hold too, and the index heads' width
//   index top-k     blocks of the candidate pool
//   experts         experts of the draft layers; a token chooses no more than there are
//   vocabulary      token ids: those that no longer fit keep their distance to its end, or become the last ones
//   tower's width   its heads and MLP
// Kept: layers and their roles, lists of sources, streams, maximum length, rotary scaling.
class Cropper {
 public:
  Cropper(const ModelConfig& from, const std::map<std::string, int64_t>& sizes) : from_(from), sizes_(sizes), to_(from) {}

  ModelConfig run() {
    text_.hidden_size = size("hidden_size", s_.hidden_size, s_.hidden_size);
    crop_attention();
    crop_experts();
    crop_vocabulary();
    if (!s_.engram_layer_ids.empty()) {
      crop_engram();
    } else {
      refuse({"engram_num_embeddings", "engram_head_dim"}, "the model has no Engram layer");
    }
    if (from_.vision) {
      crop_vision();
    } else {
      refuse({"vision_config.hidden_size", "vision_config.num_attention_heads", "vision_config.intermediate_size",
              "vision_config.num_hidden_layers", "image_token_id"},
             "the model has no vision tower");
    }
    const auto complain = [&](const std::string& prefix) {
      return [this, prefix](const std::string& key, const std::string& message) { broken(prefix + key, message); };
    };
    if (errors_.empty()) {  // else broken rules are no news
      check_text(text_, complain(""));
      if (to_.vision) check_vision(*to_.vision, complain("vision_config."));
    }
    if (!errors_.empty()) throw ConfigError("the model cannot be cropped so:\n  {}", fmt::join(errors_, "\n  "));
    return to_;
  }

 private:
  void broken(const std::string& key, const std::string& message) { errors_.push_back(key + ": " + message); }
  bool is_given(const char* key) const { return sizes_.contains(key); }

  void refuse(std::initializer_list<const char*> keys, const char* why) {
    for (const char* key : keys) {
      if (is_given(key)) broken(key, fmt::format("found {}, but {}", sizes_.at(key), why));
    }
  }

  // The given size, or else what follows.
  int64_t size(const char* key, int64_t most, int64_t follows, int64_t least = 1) {
    const auto given = sizes_.find(key);
    if (given == sizes_.end()) return follows;
    if (given->second >= least && given->second <= most) return given->second;
    broken(key, fmt::format("found {}, accepted: {} to {}{}", given->second, least, most,
                            most == follows ? ", the size that the model has" : ""));
    return follows;
  }

  int64_t narrowed(int64_t width) const { return scaled(width, text_.hidden_size, s_.hidden_size); }

  void crop_attention() {
    int64_t groups = size("o_groups", s_.o_groups, s_.o_groups);
    const int64_t follows = std::min(nearest_multiple(narrowed(s_.num_attention_heads), groups), s_.num_attention_heads);
    text_.num_attention_heads = size("num_attention_heads", s_.num_attention_heads, follows);
    if (!is_given("o_groups")) groups = std::gcd(text_.num_attention_heads, s_.o_groups);
    text_.o_groups = groups;
    text_.q_lora_rank = size("q_lora_rank", s_.q_lora_rank, narrowed(s_.q_lora_rank));
    text_.o_lora_rank = size("o_lora_rank", s_.o_lora_rank, narrowed(s_.o_lora_rank));
    text_.head_dim = size("head_dim", s_.head_dim, s_.head_dim, 2);
    text_.sliding_window = size("sliding_window", s_.sliding_window, s_.sliding_window);
    int64_t widest_rope = text_.head_dim;
    if (s_.index_source_layer_ids.empty()) {
      refuse({"index_n_heads", "index_head_dim", "index_topk"}, "no layer has an indexer");
    } else {
      text_.index_n_heads =
          size("index_n_heads", s_.index_n_heads, scaled(s_.index_n_heads, text_.num_attention_heads, s_.num_attention_heads));
      text_.index_head_dim = size("index_head_dim", s_.index_head_dim,
                                  std::max<int64_t>(2, scaled(s_.index_head_dim, text_.head_dim, s_.head_dim)), 2);
      text_.index_topk = size("index_topk", s_.index_topk, s_.index_topk);
      text_.candidate_topk_blocks = scaled(s_.candidate_topk_blocks, text_.index_topk, s_.index_topk);
      widest_rope = std::min(widest_rope, text_.index_head_dim);
    }
    const int64_t rope = nearest_multiple(scaled(s_.qk_rope_head_dim, text_.head_dim, s_.head_dim), 2);
    text_.qk_rope_head_dim = size("qk_rope_head_dim", s_.qk_rope_head_dim, std::min(rope, widest_rope / 2 * 2), 2);
  }

  void crop_experts() {
    text_.moe_intermediate_size = size("moe_intermediate_size", s_.moe_intermediate_size, narrowed(s_.moe_intermediate_size));
    text_.n_routed_experts = size("n_routed_experts", s_.n_routed_experts, s_.n_routed_experts);
    text_.num_experts_per_tok =
        size("num_experts_per_tok", s_.num_experts_per_tok, std::min(s_.num_experts_per_tok, text_.n_routed_experts));
    DraftConfig& draft = text_.draft;
    draft.n_routed_experts = scaled(draft.n_routed_experts, text_.n_routed_experts, s_.n_routed_experts);
    draft.num_experts_per_tok = std::min(draft.num_experts_per_tok, draft.n_routed_experts);
    draft.markov_rank = narrowed(draft.markov_rank);
  }

  void crop_vocabulary() {
    constexpr int64_t kFewestWords = 8;  // as many as there are special ids, and some
    const int64_t words = text_.vocab_size = size("vocab_size", s_.vocab_size, s_.vocab_size, kFewestWords);
    std::set<int64_t> taken;
    const auto move = [&](int64_t& id) {
      if (id < 0) return;
      if (id >= words || taken.contains(id)) id -= s_.vocab_size - words;
      for (int64_t last = words - 1; id < 0 || taken.contains(id); --last) id = last;
      taken.insert(id);
    };
    for (int64_t* id : {&text_.bos_token_id, &text_.eos_token_id, &text_.pad_token_id}) move(*id);
    if (from_.vision) {
      move(to_.image_token_id);
      to_.image_token_id = size("image_token_id", words - 1, to_.image_token_id, 0);
    }
    if (s_.num_nextn_predict_layers > 0) move(text_.draft.noise_token_id);
  }

  int64_t rows_of_last(int64_t base) const {
    const auto primes = engram_primes(base, static_cast<int64_t>(s_.engram_layer_ids.size()), s_.engram_columns());
    return std::accumulate(primes.back().begin(), primes.back().end(), int64_t{0});
  }

  // Tables of at most so many rows: the largest base whose primes fit.
  void crop_engram() {
    text_.engram_head_dim = size("engram_head_dim", s_.engram_head_dim, narrowed(s_.engram_head_dim));
    text_.engram_compressed_vocab_size = std::min(s_.engram_compressed_vocab_size, text_.vocab_size);
    if (s_.engram_pad_id >= text_.vocab_size) text_.engram_pad_id = text_.pad_token_id;
    const int64_t fewest = rows_of_last(2), most = std::ranges::max(s_.engram_num_embeddings);
    const int64_t rows = size("engram_num_embeddings", most, std::max(fewest, narrowed(most)), fewest);
    if (rows == most) return;
    int64_t fits = 2, beyond = s_.engram_vocab_size + 1;
    while (beyond - fits > 1) {
      const int64_t base = (fits + beyond) / 2;
      (rows_of_last(base) <= rows ? fits : beyond) = base;
    }
    text_.engram_vocab_size = fits;
    const auto primes = engram_primes(fits, static_cast<int64_t>(s_.engram_layer_ids.size()), s_.engram_columns());
    for (size_t i = 0; i < primes.size(); ++i)
      text_.engram_num_embeddings[i] = std::accumulate(primes[i].begin(), primes[i].end(), int64_t{0});
  }

  void crop_vision() {
    const VisionConfig& s = *from_.vision;
    VisionConfig& v = *to_.vision;
    v.hidden_size = size("vision_config.hidden_size", s.hidden_size, narrowed(s.hidden_size));
    int64_t heads = scaled(s.num_attention_heads, v.hidden_size, s.hidden_size);
    if (is_given("vision_config.hidden_size")) {  // heads that it has room for
      while (heads > 1 && v.hidden_size % (4 * heads) != 0) --heads;
    }
    v.num_attention_heads = size("vision_config.num_attention_heads", s.num_attention_heads, heads);
    if (!is_given("vision_config.hidden_size")) v.hidden_size = nearest_multiple(v.hidden_size, 4 * v.num_attention_heads);
    v.intermediate_size =
        size("vision_config.intermediate_size", s.intermediate_size, scaled(s.intermediate_size, v.hidden_size, s.hidden_size));
    v.num_hidden_layers = size("vision_config.num_hidden_layers", s.num_hidden_layers, s.num_hidden_layers);
  }

  const ModelConfig& from_;
  const std::map<std::string, int64_t>& sizes_;
  ModelConfig to_;
  const TextConfig& s_ = from_.text;
  TextConfig& text_ = to_.text;
  std::vector<std::string> errors_;
};

}  // namespace

const std::vector<CropSize>& crop_sizes() {
  static const std::vector<CropSize> sizes = {
      {"--hidden", "hidden_size", "width of the streams"},
      {"--heads", "num_attention_heads", "attention heads; else by --hidden"},
      {"--head-dim", "head_dim", "width of a head; else kept"},
      {"--rope-head-dim", "qk_rope_head_dim", "rotary channels of a head; else by --head-dim"},
      {"--q-lora-rank", "q_lora_rank", "low rank of the queries; else by --hidden"},
      {"--o-lora-rank", "o_lora_rank", "low rank of an output group; else by --hidden"},
      {"--o-groups", "o_groups", "output groups; else as many as divide the heads"},
      {"--index-heads", "index_n_heads", "heads of the indexer; else by --heads"},
      {"--index-head-dim", "index_head_dim", "their width; else by --head-dim"},
      {"--index-topk", "index_topk", "groups that a token attends to; the candidate pool follows"},
      {"--window", "sliding_window", "tokens of the sliding window"},
      {"--experts", "n_routed_experts", "routed experts; those of the draft layers follow"},
      {"--experts-per-token", "num_experts_per_tok", "experts that a token chooses"},
      {"--moe-intermediate", "moe_intermediate_size", "width inside of an expert; else by --hidden"},
      {"--vocab", "vocab_size", "words; special ids move to stay inside"},
      {"--image-token", "image_token_id", "token id of a picture, as the tokenizer has it"},
      {"--engram-rows", "engram_num_embeddings", "rows of an Engram table, at most; else by --hidden"},
      {"--engram-head-dim", "engram_head_dim", "width of a row; else by --hidden"},
      {"--vision-hidden", "vision_config.hidden_size", "width of the vision tower; else by --hidden"},
      {"--vision-heads", "vision_config.num_attention_heads", "its heads; else by its width"},
      {"--vision-intermediate", "vision_config.intermediate_size", "its MLP's width; else by its width"},
      {"--vision-layers", "vision_config.num_hidden_layers", "its blocks; else kept"},
  };
  return sizes;
}

ModelConfig crop(const ModelConfig& config, const std::map<std::string, int64_t>& sizes) {
  return Cropper(config, sizes).run();
}

}  // namespace hyperparallel::models::deepseek_v41
