// What the segments of the model keep and need inside, and how large the elements of their values are, for plans
// (engine/program.h, NOTE [Footprint]). Follows the code of the segments and kernels; tests/plan holds it against measured bytes.
#include <algorithm>
#include <map>

#include "kernels/attention/fused.h"
#include "kernels/indexer/op.h"
#include "kernels/mhc/mega.h"
#include "kernels/moe/mega.h"
#include "kernels/moe/op.h"
#include "models/adapter/footprints.h"
#include "models/deepseek_v41/builder.h"

namespace hyperparallel::models::deepseek_v41 {
namespace {

using engine::Dimension;
using engine::Element;
using engine::Footprint;

// clamped_swiglu of [rows, width]; `weighted`: with a weight for each row.
Buffers saved_by_swiglu(const Dimension& rows, int64_t width, bool clamped, bool weighted) {
  const int64_t products = (clamped ? 5 : 3) + (weighted ? 1 : 0);  // gate, up, both clamped, silu, product before the weight
  return {math({products, rows, width}), compute({rows, width})};
}

class Declaration {
 public:
  Declaration(engine::Program& program, const ModelConfig& config, const ProgramOptions& options)
      : program_(program),
        footprints_(program),
        config_(config),
        t_(config.text),
        layout_(options.layout),
        fused_(options.kernels.attention >= kernels::Implementation::kFused),
        mega_mhc_(options.kernels.mhc == kernels::Implementation::kMega),
        mega_indexer_(
            kernels::choose(options.kernels.indexer, kernels::index_candidates(options.compute, t_.index_head_dim)).taken ==
            kernels::Implementation::kMega),
        fused_engram_(options.kernels.engram >= kernels::Implementation::kFused),
        moe_limit_(options.kernels.moe),
        compute_(options.compute),
        rows_(layout_.sequence_parallel ? "shard" : "tokens") {}

  void run() {
    set_elements();
    for (int64_t layer = 0; layer < t_.num_hidden_layers; ++layer) {
      const std::string name = layer_name(layer);
      for (const char* kind : {".hc_attn", ".hc_ffn"}) add_mix(name + kind, rows_, /*is_first=*/layer == 0 && kind[4] == 'a');
      add_attention(layer, name + ".attn");
      add_moe(name + ".ffn", {"tokens", "shard", "choices", t_.n_routed_experts, t_.num_experts_per_tok});
      if (t_.engram_index(layer)) add_engram(name + ".engram");
    }
    if (config_.vision) add_vision(*config_.vision);
    if (footprints_.has("draft.loss")) add_draft_layers();
    add_sent_rows();
    add_ends();
  }

 private:
  void set(const std::string& segment, Footprint footprint) { footprints_.set(segment, std::move(footprint)); }

  // While streams are collapsed and normalised: a row in the math type, and copies on the way back to another compute type.
  Buffers collapsing(const Dimension& rows) const {
    const int64_t d = t_.hidden_size;
    return {math({rows, d}), cast({rows, d}), cast({rows, d / 2})};
  }

  void set_elements() {
    const auto ends = [](const std::string& name, std::initializer_list<const char*> endings) {
      return std::ranges::any_of(endings, [&](const char* ending) { return name.ends_with(ending); });
    };
    for (engine::ValueSpec& value : program_.values) {
      if (value.name == "pre" || value.name == "loss" ||
          ends(value.name, {".cos", ".sin", ".pre", ".post", ".comb", ".sent_weights", ".row_weights", "draft.confidence",
                            "draft.confidence.all"}))
        value.element = Element::kMath;
      if (ends(value.name, {".topk", ".candidate_blocks"})) value.element = Element::kInt32;
      if (ends(value.name, {".index_k", ".index_keys", ".index_q", ".index_weights"})) value.element = Element::kCompute;
      if (value.name.starts_with("draft.target.") || value.name.starts_with("draft.model_hidden"))
        value.element = Element::kCompute;
      if (value.name == "image" || value.name == "closed" || value.name == "padding" || value.name == "counted")
        value.element = Element::kBool;
      if (value.name.find(".chosen_") != std::string::npos ||
          ends(value.name, {".sequence_shares", "_loss", "_loss.partial", "_loss.sum"}))
        value.element = Element::kMath;
    }
  }

  // `is_first`: the collapsing weights are constant.
  void add_mix(const std::string& name, const Dimension& rows, bool is_first) {
    const int64_t n = t_.hc_mult, d = t_.hidden_size;
    const bool is_boundary = footprints_.has(name + ".boundary");
    Footprint in, out;
    if (mega_mhc_) {
      // Coefficients before they are normalised; sums of parameters' gradients.
      const int64_t numbers = kernels::mhc::gradient_numbers(n, d);
      const int64_t parts = kernels::mhc::gradient_parts(1 << 20, numbers);
      in.saved = {math({rows, (2 + n) * n + 1})};
      in.backward = {math({parts, numbers}), compute({rows, n, d})};
      if (is_boundary) in.backward.push_back(compute({rows, d}));
      out.backward = {compute({rows, n, d}), compute({rows, d}), cast({rows, n, d / 2})};
      set(name + (is_boundary ? ".boundary" : ".in"), in);
      set(name + ".out", out);
      return;
    }
    in.saved = {math({rows, (2 + n) * n + 1})};
    if (!is_first) in.saved.push_back(cast({rows, n, d}));
    append(in.saved, saved_by_norm(rows, d));
    in.forward = collapsing(rows);
    in.backward = {math({rows, n, d}), math({3, rows, d})};
    out.saved = {cast({rows, n, d}), cast({rows, d})};
    out.forward = {math({2, rows, n, d}), cast({rows, n, d})};
    out.backward = {math({2, rows, n, d}), cast({2, rows, d})};
    if (is_boundary) {
      append(in.saved, out.saved);
      append(in.backward, out.backward);
      in.forward = out.forward;
      set(name + ".boundary", in);
    } else {
      set(name + ".in", in);
    }
    set(name + ".out", out);
  }

  void add_attention(int64_t layer, const std::string& name) {
    const int64_t hd = t_.head_dim, heads = layout_.part(t_.num_attention_heads, "tp"), d = t_.hidden_size;
    const int64_t low = layout_.part(t_.o_groups, "tp") * t_.o_lora_rank, ratio = t_.ratio(layer), rope = t_.qk_rope_head_dim;
    const std::string groups = "groups." + std::to_string(ratio);
    Footprint kv;
    kv.saved = saved_by_norm("tokens", hd);
    kv.forward = {compute({"tokens", hd})};
    kv.backward = {compute({2, "tokens", hd}), compute({"tokens", d})};
    set(name + ".kv", kv);

    if (t_.is_kv_source(layer)) {
      Footprint compress;
      compress.saved = saved_by_norm(groups, hd);
      append(compress.saved,
             ratio > 1 ? Buffers{math({groups, ratio, d}), math({2, groups, ratio, hd})} : Buffers{compute({groups, d})});
      compress.forward = {math({groups, hd}), cast({groups, hd})};
      compress.backward = {math({"tokens", d}), compute({groups, d}), math({groups, hd})};
      set(name + ".compress", compress);
      set(name + ".index_key", {{}, {compute({3, groups, t_.index_head_dim}), cast({3, groups, t_.index_head_dim})}, {}});
    }

    Footprint queries;
    queries.saved = saved_by_norm("tokens", t_.q_lora_rank);
    queries.forward = {compute({"tokens", heads, hd})};
    queries.backward = {compute({"tokens", heads, hd}), compute({2, "tokens", t_.q_lora_rank})};
    set(name + ".queries", queries);

    const int64_t index_heads = layout_.part(t_.index_n_heads, "tp");
    set(name + ".index_query", {{},
                                {compute({"tokens", index_heads, t_.index_head_dim}), math({"tokens", index_heads, rope}),
                                 cast({"tokens", index_heads, t_.index_head_dim})},
                                {}});
    // Scores of a chunk; or keys in panels, with those of a chunk where they are summed over tp.
    Footprint select{{}, {math({"index.rows", index_heads + 1, groups + ".gathered"})}, {}};
    if (mega_indexer_) {
      select.forward = {compute({groups + ".gathered", t_.index_head_dim}), math({"tokens", index_heads})};
      if (layout_.size("tp") > 1) select.forward.push_back(math({2, "index.sum_rows", groups + ".gathered"}));
    }
    set(name + ".select", select);

    Footprint attend;
    attend.saved = {compute({"tokens", heads, hd}), compute({"tokens", low})};
    // A chunk of queries at a time. Its forward ends before the output is projected, so only a part of it comes on top.
    const std::string selected = name + ".k", all = groups + ".gathered";
    if (fused_) {
      Buffers widened;
      if (!kernels::attention::takes_pairs(compute_, hd))
        widened = {cast({"tokens", heads, hd}), cast({"window.keys", hd}), cast({all, hd})};
      attend.forward = {compute({"tokens", heads, hd})};
      append(attend.forward, widened);
      attend.backward = {math({"tokens", heads, hd}), math({2, "window.keys", hd}), math({groups + ".seen", hd})};
      append(attend.backward, widened);
    } else {
      attend.forward = {compute({"tokens", heads, hd}), math({"attention.rows", heads, "attention.keys"}),
                        math({"attention.rows", heads, selected}), cast({2, "attention.rows", heads, "attention.keys"})};
      attend.backward = {compute({2, "tokens", heads, hd}), math({"window.keys", hd}),
                         math({2, "attention.rows", heads, "attention.keys"}), math({2, "attention.rows", heads, selected}),
                         compute({5, "attention.rows", selected, hd})};
      if (ratio > 0) attend.backward.push_back(math({all, hd}));
    }
    if (layout_.size("cp") > 1) attend.saved.push_back(compute({"window.keys", hd}));
    set(name + ".attend", attend);
    add_indexer_loss(name, groups);
  }

  void add_indexer_loss(const std::string& name, const std::string& groups) {
    const Dimension index_rows = "index.rows", all = groups + ".gathered";
    const int64_t own_heads = layout_.part(t_.index_n_heads, "tp"), attention_heads = layout_.part(t_.num_attention_heads, "tp");
    set(name + ".dense_loss",
        {{math({"tokens", own_heads, t_.index_head_dim}), math({"tokens", own_heads}), math({all, t_.index_head_dim})},
         {math({3, index_rows, attention_heads, all}), math({3, index_rows, own_heads, all})},
         {math({"tokens", own_heads, t_.index_head_dim}), math({all, t_.index_head_dim})}});
    if (!footprints_.has(name + ".student")) return;
    const int64_t hd = t_.head_dim, heads = layout_.part(t_.num_attention_heads, "tp"), width = t_.index_head_dim,
                  index_heads = layout_.part(t_.index_n_heads, "tp");
    const Dimension rows = "attention.rows", chosen = name + ".k";
    if (fused_) {
      set(name + ".teacher", {{}, {cast({"tokens", heads, hd}), cast({"window.keys", hd}), cast({all, hd})}, {}});
    } else {
      set(name + ".teacher", {{}, {math({3, rows, heads, chosen}), compute({rows, chosen, hd})}, {}});
    }
    // A chunk of queries at a time, in the math type.
    set(name + ".student",
        {{},
         {compute({rows, chosen, width}), math({rows, chosen, width}), math({rows, index_heads, width}),
          math({2, rows, index_heads, chosen})},
         {compute({"tokens", index_heads, width}), cast({"tokens", index_heads, width}), math({groups + ".gathered", width}),
          cast({groups + ".gathered", width}), compute({rows, chosen, width}), math({2, rows, chosen, width}),
          math({2, rows, index_heads, width}), math({3, rows, index_heads, chosen})}});
    set(name + ".indexer_loss", {{math({4, "tokens", chosen})}, {math({2, "tokens", chosen})}, {math({2, "tokens", chosen})}});
    footprints_.segment(name + ".index_query").footprint.backward = {compute({2, "tokens", index_heads, width}),
                                                                     compute({"tokens", t_.q_lora_rank})};
    if (footprints_.has(name + ".index_key"))
      footprints_.segment(name + ".index_key").footprint.saved = saved_by_norm(groups, width);
  }

  struct Rows {
    const char *tokens, *shard, *choices;
    int64_t experts, k;
  };
  void add_moe(const std::string& name, const Rows& of) {
    const int64_t d = t_.hidden_size, w = t_.moe_intermediate_size, experts = of.experts, k = of.k;
    const Dimension shard = of.shard, choices = of.choices;
    const bool clamped = t_.swiglu_limit > 0;
    Footprint route;
    route.saved = {cast({shard, d}), math({2, shard, experts}), math({3, shard, k})};
    route.forward = {math({2, shard, experts})};
    route.backward = {math({3, shard, experts}), math({choices, d}), math({shard, d}), cast({shard, d})};
    set(name + ".route", route);

    const bool by_channel = footprints_.has(name + ".shared");
    const Dimension shared_rows = by_channel ? Dimension(of.tokens) : shard;
    const int64_t shared_width = by_channel ? layout_.part(w, "tp") : w;
    if (mega(w)) {
      add_mega_experts(name, of, /*with_shared=*/!by_channel);
      if (by_channel) {
        set(name + ".shared", shared_mlp(shared_rows, shared_width));
        set(name + ".combine", {});
      }
      return;
    }
    const Dimension rows = program_.values[footprints_.segment(name + ".experts").makes.front().index].shape.front();
    Footprint mlp{saved_by_swiglu(rows, w, clamped, /*weighted=*/true), {}, {}};
    if (layout_.size("ep") > 1) append(mlp.saved, {compute({rows, d})});
    mlp.forward = {layout_.size("ep") > 1 ? compute({rows, d}) : cast({rows, w})};  // back in the order of the senders
    if (layout_.size("ep") > 1) append(mlp.saved, {math({rows}), int64({rows})});
    set(name + ".experts", mlp);

    Footprint shared = shared_mlp(shared_rows, shared_width);
    const Buffers combined = {math({choices, d}), math({shard, d}), cast({choices, d}), cast({shard, d})};
    const Buffers derived = {compute({choices, d}), math({shard, d}), cast({shard, d})};
    if (by_channel) {
      set(name + ".shared", shared);
      set(name + ".combine", {{}, combined, derived});
    } else {
      append(shared.forward, combined);
      append(shared.backward, derived);
      set(name + ".combine", shared);
    }
  }

  bool mega(int64_t width) const {
    return kernels::choose(moe_limit_, kernels::expert_candidates(compute_, t_.hidden_size, width)).taken ==
           kernels::Implementation::kMega;
  }
  // kernels/moe/mega.cpp: gate and up; packed weights and rows; activations and rows on the way back.
  Footprint mega_experts(const Dimension& rows, int64_t width, int64_t experts) const {
    const int64_t d = t_.hidden_size;
    const engine::Buffer packed = compute({3, experts, width, d});
    return {{compute({2, rows, width})}, {packed}, {compute({3, rows, width}), packed}};
  }
  // All experts in one segment; where they lie over ep, it reads who sends how many rows.
  void add_mega_experts(const std::string& name, const Rows& of, bool with_shared) {
    const int64_t d = t_.hidden_size, w = t_.moe_intermediate_size;
    engine::Segment& segment = footprints_.segment(name + ".experts");
    const bool travel = segment.reads.size() == 5;
    const Dimension met = travel ? Dimension(name + ".received") : of.choices,
                    own = travel ? Dimension(name + ".own") : of.choices;
    Footprint mlp = mega_experts(met, w, travel ? layout_.part(of.experts, "ep") : of.experts);
    for (Buffers* buffers : {&mlp.forward, &mlp.backward}) buffers->push_back(compute({own, d}));
    if (with_shared) {
      append(mlp, mega_experts(of.shard, w, 1));
      for (Buffers* buffers : {&mlp.forward, &mlp.backward}) buffers->push_back(compute({of.shard, d}));
    }
    if (travel && layout_.size("ep") > 1) {
      const int64_t weighted = d + kernels::moe::numbers_beside_row(compute_);
      const engine::Buffer coming = compute({name + ".foreign", weighted}), leaving = compute({name + ".leaving", weighted});
      mlp.saved.push_back(coming);
      append(mlp.forward, {leaving, compute({name + ".foreign", d}), compute({name + ".leaving", d})});
      append(mlp.backward, {compute({name + ".leaving", d}), compute({name + ".foreign", d}), coming, leaving});
      for (const char* way : {".rows", ".returned"}) segment.inner.push_back({name + way, "ep", leaving});
    }
    segment.footprint = mlp;
  }
  Footprint shared_mlp(const Dimension& rows, int64_t width) const {
    if (mega(width)) return mega_experts(rows, width, 1);
    return {saved_by_swiglu(rows, width, t_.swiglu_limit > 0, /*weighted=*/false), {}, {}};
  }
  void add_engram(const std::string& name) {
    const int64_t n = t_.hc_mult, d = t_.hidden_size, looked_up = t_.engram_columns() * t_.engram_head_dim;
    Footprint write;
    if (fused_engram_) {
      write.saved = {compute({"shard", looked_up}), compute({"shard", (n + 1) * d}), math({4, "shard", n})};
      write.backward = {compute({"shard", n, d}), compute({"shard", (n + 1) * d}), math({16, n, d}),
                        compute({"shard", looked_up})};
      set(name + ".write", write);
      return;
    }
    write.saved = {compute({"shard", looked_up}), math({"shard", (n + 1) * d}), math({"shard", n, d}), cast({"shard", n, d}),
                   math({10, "shard", n})};
    write.forward = {math({2, "shard", n, d}), cast({"shard", n, d})};
    write.backward = {math({4, "shard", n, d}), compute({"shard", (n + 1) * d}), compute({"shard", looked_up})};
    set(name + ".write", write);
  }

  void add_vision(const VisionConfig& v) {
    const int64_t w = v.hidden_size, inner = v.intermediate_size, area = v.downsample_ratio * v.downsample_ratio,
                  hd = w / v.num_attention_heads, d = t_.hidden_size;
    const Dimension rows = "patches";
    const Buffers norm{math({rows, w}), compute({rows, w}), math({rows}), cast({rows, w})};
    set("vision.patch_embed", {{}, {compute({rows, w})}, {}});
    for (int64_t block = 0; block < v.num_hidden_layers; ++block) {
      const std::string name = "vision.blocks." + std::to_string(block);
      Footprint qkv{norm, {math({2, rows, w}), compute({3, rows, w})}, {math({4, rows, w}), compute({2, rows, w})}};
      set(name + ".qkv", qkv);
      // All patches of the group beside each other, then attention without scores in memory.
      set(name + ".attend", {{compute({4, "head_patches", hd}), math({"head_patches"})},
                             {compute({"head_patches", hd})},
                             {compute({6, "head_patches", hd})}});
      set(name + ".out", {{compute({rows, w})}, {compute({2, rows, w})}, {compute({4, rows, w})}});
      Footprint mlp{norm, {compute({rows, w})}, {compute({2, rows, inner})}};
      append(mlp.saved, {compute({4, rows, inner})});  // gate and up, silu, product
      set(name + ".mlp", mlp);
    }
    set("vision.norm", {{math({rows, w}), cast({rows, w})}, {math({rows, w}), cast({rows, w})}, {math({4, rows, w})}});
    set("vision.aligner", {{compute({"aligned", area, w}), compute({2, "aligned", d})},
                           {compute({rows, w}), compute({"aligned", area, w})},
                           {compute({rows, w}), cast({rows, w})}});
    set("image_spans", {{}, {compute({"aligned", d})}, {compute({"aligned", d})}});
  }

  // Of the layers themselves; the window's logits count as attention's.
  void add_draft_layers() {
    const int64_t hd = t_.head_dim, heads = layout_.part(t_.num_attention_heads, "tp"), d = t_.hidden_size,
                  low = layout_.part(t_.o_groups, "tp") * t_.o_lora_rank, rank = t_.draft.markov_rank,
                  words = layout_.part(t_.vocab_size, "tp"), block = t_.draft.block_size;
    const Dimension rows = "draft.tokens", of_streams = layout_.sequence_parallel ? "draft.shard" : "draft.tokens";
    set("draft.main", {saved_by_norm(rows_, d), {}, {compute({2, rows_, d})}});
    for (size_t i = 0; i < t_.draft.target_layer_ids.size(); ++i)
      set("draft.target." + std::to_string(i), {{}, {cast({rows_, t_.hc_mult, d}), cast({rows_, d})}, {}});
    append(footprints_.segment("draft.main").footprint.saved,
           {compute({rows_, d * static_cast<int64_t>(t_.draft.target_layer_ids.size())})});
    for (int64_t stage = 0; stage < t_.num_nextn_predict_layers; ++stage) {
      const std::string name = "mtp." + std::to_string(stage), attn = name + ".attn";
      for (const char* kind : {".hc_attn", ".hc_ffn"}) add_mix(name + kind, of_streams, stage == 0 && kind[4] == 'a');
      Footprint kv{saved_by_norm("tokens", hd), {compute({"tokens", hd})}, {compute({2, "tokens", hd}), compute({"tokens", d})}};
      append(kv.saved, saved_by_norm(rows, hd));
      set(attn + ".kv", kv);
      set(attn + ".queries", {saved_by_norm(rows, t_.q_lora_rank),
                              {compute({rows, heads, hd})},
                              {compute({rows, heads, hd}), compute({2, rows, t_.q_lora_rank})}});
      set(attn + ".attend", {{compute({rows, heads, hd}), compute({rows, low}), compute({"draft.window.keys", hd})},
                             {compute({rows, heads, hd}), math({2, "attention.rows", heads, "attention.keys"})},
                             {compute({2, rows, heads, hd}), math({"draft.window.keys", hd}), math({rows, hd}),
                              math({3, "attention.rows", heads, "attention.keys"}), compute({4, "attention.rows", block, hd})}});
      add_moe(name + ".ffn",
              {"draft.tokens", "draft.shard", "draft.shard.choices", t_.draft.n_routed_experts, t_.draft.num_experts_per_tok});
    }
    set("draft.final_norm", {saved_by_norm(of_streams, d), collapsing(of_streams), {math({of_streams, t_.hc_mult, d})}});
    set("draft.confidence",
        {{cast({of_streams, d + rank}), compute({of_streams, d + rank})}, {}, {math({of_streams, d + rank})}});
    // Derived in forward; two distributions of a chunk of rows at a time.
    set("draft.loss", {{compute({rows, d + rank}), math({words, rank})},
                       {compute({3, rows, d}), math({6, "draft.loss.rows", words})},
                       {compute({2, rows, d + rank})}});
  }

  // Rows that other ranks get: derived in the math type.
  void add_sent_rows() {
    for (engine::Segment& segment : program_.segments) {
      if (!segment.name.ends_with(".send")) continue;
      const engine::Shape& rows = program_.values[segment.reads.front().index].shape;
      segment.footprint.backward = {compute(rows), cast(rows)};
    }
  }

  void add_ends() {
    const int64_t n = t_.hc_mult, d = t_.hidden_size;
    Footprint norm;
    norm.saved = saved_by_norm(rows_, d);
    norm.saved.push_back(cast({rows_, n, d}));
    norm.forward = {math({rows_, d})};
    norm.backward = {math({rows_, n, d})};
    set("final_norm", norm);
    footprints_.set_ends(d, layout_.part(t_.vocab_size, "tp"));
  }

  engine::Program& program_;
  const Footprints footprints_;
  const ModelConfig& config_;
  const TextConfig& t_;
  const engine::Layout& layout_;
  const bool fused_;  // attention
  const bool mega_mhc_, mega_indexer_, fused_engram_;
  const kernels::Implementation moe_limit_;
  const at::ScalarType compute_;
  const Dimension rows_;  // of the streams
};

}  // namespace

void declare_footprints(engine::Program& program, const ModelConfig& config, const ProgramOptions& options) {
  Declaration(program, config, options).run();
}

}  // namespace hyperparallel::models::deepseek_v41
