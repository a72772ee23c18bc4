#include <ATen/core/grad_mode.h>

#include "kernels/attention/op.h"

#include "kernels/compress/op.h"
#include "kernels/indexer/dense_loss.h"
#include "kernels/indexer/loss.h"
#include "kernels/norm/op.h"
#include "kernels/quantise/op.h"
#include "kernels/rows/op.h"
#include "kernels/types.h"
#include "models/deepseek_v41/attention_parts.h"

namespace hyperparallel::models::deepseek_v41 {

using engine::ExchangeKind;
using engine::ParameterId;
using engine::SegmentRun;
using engine::ValueId;

namespace {

at::Tensor window_keys(SegmentRun& run, ValueId own, ValueId halo, ValueId rows) {
  return halo.valid() ? arranged_keys(run.read(own), run.read(halo), run.read(rows)) : run.read(own);
}

// Adds the attention of one layer, piece by piece.
class AttentionLayer {
 public:
  AttentionLayer(ModelBuilder& builder, int64_t layer, ValueId x)
      : builder_(builder),
        program_(builder.program),
        text_(builder.text()),
        layer_(layer),
        x_(x),
        ratio_(text_.ratio(layer)),
        prefix_(layer_parameter(layer) + "attn."),
        name_(layer_name(layer) + ".attn"),
        rope_(ratio_ > 0 ? builder.rope_compress : builder.rope_main) {
    if (ratio_ > 0) groups_ = builder.inputs.groups.at(ratio_);
  }

  ValueId add() {
    builder_.partial = true;
    x_ = enter_tokens(builder_, name_ + ".x", x_);
    add_window_kv();
    ValueId halo;
    if (!builder_.options.cached) halo = launch_halo(builder_, name_ + ".window_halo", "cp", window_kv_, builder_.inputs.window);
    ValueId compressed, index_keys;
    if (text_.is_kv_source(layer_)) {
      add_compressed_kv();
      compressed = launch_gather(name_ + ".compressed", compressed_kv_);
      index_keys = launch_gather(name_ + ".index_keys", index_k_);
    }
    const QueryValues queries = add_queries(builder_, name_, prefix_, x_, rope_);
    q_res_ = queries.residual, q_ = queries.q;
    if (text_.is_index_source(layer_)) add_index_queries();
    if (text_.is_kv_source(layer_)) {
      program_.wait(compressed);
      program_.wait(index_keys);
      builder_.published = {add_continued(builder_, compressed, KeptRows::Kind::kGroups, ratio_),
                            add_continued(builder_, index_keys, KeptRows::Kind::kGroups, ratio_)};
    }
    if (text_.is_index_source(layer_) && !is_dense()) add_selection();
    const ValueId part = add_attend(halo);
    return leave_tokens(builder_, layer_name(layer_) + ".attn_out", part);
  }

 private:
  // The rows of all groups in the order of the tokens, from the cp ranks that made them.
  ValueId launch_gather(const std::string& name, ValueId rows) {
    return program_.launch(name, ExchangeKind::kAllGather, "cp", rows, "groups." + std::to_string(ratio_) + ".gathered",
                           groups_.rows, {}, groups_.order);
  }

  // NOTE [Training the indexer]: its values have gradients where its loss is on, and then from this loss alone; their inputs are
  // detached, so that it reaches nothing but the indexer. Without it they are discrete and its parameters stand still.
  bool trains_indexer() const { return builder_.has_indexer_loss(); }
  // NOTE [Dense stage]: no group is chosen; every layer attends to all that a query sees, and the indexer learns from all.
  bool is_dense() const { return trains_indexer() && builder_.options.losses.dense_indexer; }
  ValueId index_value(const std::string& name, engine::Shape shape) {
    return trains_indexer() ? program_.value(name, std::move(shape)) : program_.choice(name, std::move(shape));
  }

  void add_window_kv() {
    const ParameterId wkv = builder_.weight(prefix_ + "wkv.weight", {text_.head_dim, text_.hidden_size});
    const ParameterId norm = builder_.gain(prefix_ + "kv_norm.weight", text_.head_dim);
    window_kv_ = program_.value(layer_name(layer_) + ".window_kv", {"tokens", text_.head_dim});
    program_.segment(
        name_ + ".kv", {x_, rope_.cos, rope_.sin}, {window_kv_}, {wkv, norm},
        [x = x_, rope = rope_, out = window_kv_, wkv, norm, eps = text_.rms_norm_eps, name = layer_name(layer_) + ".window_kv",
         quantised = builder_.config.switches.cache_quantisation](SegmentRun& run) {
          const at::Tensor kv = kernels::rms_norm(engine::linear(run.read(x), run.weight(wkv)), run.parameter(norm), eps);
          const at::Tensor rotated = kernels::apply_rope(kv, table_of(run, rope));
          run.observe(name + ".unquantised", "tokens", [&] { return rotated; });
          run.make(out, quantised ? kernels::fp8_window(rotated) : rotated);
        });
  }

  // KV sources: latents of token groups, published after RoPE, and the index keys made from them.
  void add_compressed_kv() {
    const int64_t hd = text_.head_dim;
    const std::string prefix = prefix_ + "compressor.", rows = "groups." + std::to_string(ratio_);
    const ParameterId wkv = builder_.weight(prefix + "wkv.weight", {hd, text_.hidden_size});
    const ParameterId wgate = ratio_ > 1 ? builder_.weight(prefix + "wgate.weight", {hd, text_.hidden_size}) : ParameterId{};
    const ParameterId norm = builder_.gain(prefix + "norm.weight", hd);
    std::vector<ParameterId> parameters{wkv, norm};
    if (wgate.valid()) parameters.push_back(wgate);
    const RopeValues rope = builder_.rope_of_groups.at(ratio_);
    const bool quantised = builder_.config.switches.cache_quantisation;
    // Tokens of a group that began on an earlier cp rank come from there.
    ValueId inputs = x_, halo;
    if (ratio_ > 1) {
      inputs = add_continued(builder_, x_, KeptRows::Kind::kGroupInputs, ratio_);
      if (!builder_.options.cached) {
        halo = launch_halo(builder_, name_ + ".group_halo", "cp", x_, groups_.halo);
        program_.wait(halo);
      }
    }
    std::vector<ValueId> reads{inputs, groups_.tokens, rope.cos, rope.sin};
    if (halo.valid()) reads.push_back(halo);
    const ValueId latent = program_.value(layer_name(layer_) + ".latent", {rows, hd});
    compressed_kv_ = program_.value(layer_name(layer_) + ".compressed_kv", {rows, hd});
    program_.segment(name_ + ".compress", reads, {latent, compressed_kv_}, parameters,
                     [=, members = groups_.tokens, out = compressed_kv_, ratio = ratio_, layer = layer_,
                      eps = text_.rms_norm_eps](SegmentRun& run) {
                       const at::Tensor input = halo.valid() ? with_received(run.read(inputs), run.read(halo)) : run.read(inputs);
                       const at::Tensor tokens = run.read(members).reshape({-1});
                       at::Tensor pooled;  // [groups, head_dim] in the model type
                       if (ratio > 1) {
                         const at::Tensor wide = kernels::to_math(kernels::gather_rows(input, tokens));
                         const at::Tensor u = engine::linear(wide, run.weight(wkv)).view({-1, ratio, hd});
                         const at::Tensor g = engine::linear(wide, run.weight(wgate)).view({-1, ratio, hd});
                         pooled = kernels::pool_groups(u, g).to(input.scalar_type());
                       } else {
                         pooled = engine::linear(kernels::gather_rows(input, tokens), run.weight(wkv));
                       }
                       const at::Tensor z = kernels::rms_norm(pooled, run.parameter(norm), eps);
                       const at::Tensor rotated = kernels::apply_rope(z, table_of(run, rope));
                       run.observe(layer_name(layer) + ".compressed_kv.unquantised", rows, [&] { return rotated; });
                       run.make(latent, z);
                       run.make(out, quantised ? kernels::fp4_kv(rotated) : rotated);
                     });

    const ParameterId wk = builder_.weight(prefix_ + "indexer.wk.weight", {text_.index_head_dim, hd});
    const ParameterId k_norm = builder_.gain(prefix_ + "indexer.k_norm.weight", text_.index_head_dim);
    index_k_ = index_value(layer_name(layer_) + ".index_k", {rows, text_.index_head_dim});
    program_.segment(name_ + ".index_key", {latent, rope.cos, rope.sin}, {index_k_}, {wk, k_norm},
                     [=, out = index_k_, layer = layer_, eps = text_.rms_norm_eps, trained = trains_indexer()](SegmentRun& run) {
                       const at::AutoGradMode mode(trained && at::GradMode::is_enabled());
                       const at::Tensor k = kernels::rms_norm(engine::linear(run.read(latent).detach(), run.weight(wk)),
                                                              run.parameter(k_norm), eps);
                       const at::Tensor rotated = kernels::apply_rope(k, table_of(run, rope));
                       run.observe(layer_name(layer) + ".index_k.unquantised", rows, [&] { return rotated; });
                       run.make(out, quantised ? kernels::fp4_index(rotated) : rotated);
                     });
  }

  void add_index_queries() {
    const int64_t all_heads = text_.index_n_heads, heads = builder_.local(all_heads, kByHead), d = text_.index_head_dim;
    const ParameterId wq_b = builder_.weight(prefix_ + "indexer.wq_b.weight", {all_heads * d, text_.q_lora_rank}, kByHead,
                                             update_by("head", all_heads, d));
    const ParameterId weights_proj =
        builder_.weight(prefix_ + "indexer.weights_proj.weight", {all_heads, text_.hidden_size}, kByHead);
    index_q_ = index_value(name_ + ".index_q", {"tokens", heads, d});
    index_weights_ = index_value(name_ + ".index_weights", {"tokens", heads});
    program_.segment(name_ + ".index_query", {x_, q_res_, rope_.cos, rope_.sin}, {index_q_, index_weights_}, {wq_b, weights_proj},
                     [=, x = x_, q_res = q_res_, rope = rope_, q_out = index_q_, w_out = index_weights_,
                      quantised = builder_.config.switches.cache_quantisation, trained = trains_indexer()](SegmentRun& run) {
                       const at::AutoGradMode mode(trained && at::GradMode::is_enabled());
                       const at::Tensor q = engine::linear(run.read(q_res).detach(), run.weight(wq_b)).view({-1, heads, d});
                       const at::Tensor rotated = kernels::apply_rope(q, table_of(run, rope));
                       run.make(q_out, quantised ? kernels::fp4_index(rotated) : rotated);
                       run.make(w_out, engine::linear(run.read(x).detach(), run.weight(weights_proj)));
                     });
  }

  void add_selection() {
    const bool pooling = builder_.config.switches.candidates && text_.candidate_source_layer_id >= 0;
    const bool makes_candidates = pooling && layer_ == text_.candidate_source_layer_id;
    const ValueId pool = pooling && layer_ > text_.candidate_source_layer_id ? builder_.candidates : ValueId{};
    const ValueId keys = builder_.published.index_keys,
                  topk = program_.choice(layer_name(layer_) + ".topk", {"tokens", name_ + ".k"});
    const ValueId candidates =
        makes_candidates ? program_.choice(layer_name(layer_) + ".candidate_blocks", {"tokens", "candidate_blocks"}) : ValueId{};
    std::vector<ValueId> reads{index_q_, index_weights_, keys, groups_.first, groups_.count}, makes{topk};
    if (pool.valid()) reads.push_back(pool);
    if (makes_candidates) makes.push_back(candidates);
    const auto how = builder_.choose(
        "indexer", fmt::format("{} heads of {}", builder_.local(text_.index_n_heads, kByHead), text_.index_head_dim),
        builder_.options.kernels.indexer, kernels::index_candidates(builder_.options.compute, text_.index_head_dim));
    program_.segment(
        name_ + ".select", reads, makes, {},
        [=, is_shared = builder_.layout().size("tp") > 1, index_q = index_q_, index_weights = index_weights_, groups = groups_,
         best = text_.index_topk, blocks = text_.candidate_topk_blocks, block_size = text_.candidate_block_size,
         chunk = builder_.options.index_chunk_elements, heads = text_.index_n_heads, layer = layer_](SegmentRun& run) {
          // Each tp rank scores with its heads; the sum decides, so all choose alike.
          const auto sum_over_tp = [&](const at::Tensor& scores) {
            return run.group("tp").all_reduce(scores, layer_name(layer) + ".index_scores").wait();
          };
          kernels::IndexQueries queries{
              run.read(index_q), run.read(index_weights), run.read(groups.first), run.read(groups.count), heads, {}};
          if (is_shared) queries.sum = sum_over_tp;
          const int64_t most = queries.count.numel() > 0 ? queries.count.max().item<int64_t>() : 0;  // no query sees more groups
          kernels::CandidateOptions keep{0, block_size};
          if (pool.valid()) keep.blocks = run.read(pool).size(1);
          if (candidates.valid()) keep.blocks = std::min(blocks, (most + block_size - 1) / block_size);
          const kernels::IndexChoice choice = kernels::choose_groups(queries, run.read(keys), std::min(best, most), keep,
                                                                     pool.valid() ? run.read(pool) : at::Tensor(), chunk, how);
          run.observe(layer_name(layer) + ".index_scores", "tokens",
                      [&] { return kernels::index_scores(queries, run.read(keys)); });
          run.make(topk, choice.topk);
          if (candidates.valid())
            run.make(candidates, choice.candidates.defined() ? choice.candidates : at::empty({queries.q.size(0), 0}, at::kInt));
        });
    builder_.topk = topk;
    if (makes_candidates) builder_.candidates = candidates;
  }

  // What attention says of the chosen groups, and the scores that are to say the same: both are parts of sums over tp.
  void add_indexer_loss(ParameterId sink, ValueId halo, ValueId window_kv) {
    const std::string layer = layer_name(layer_);
    const ValueId attention = program_.choice(name_ + ".chosen_attention.partial", {"tokens", name_ + ".k"}),
                  scores = program_.value(name_ + ".chosen_scores.partial", {"tokens", name_ + ".k"});
    const ValueId topk = builder_.topk, compressed = builder_.published.compressed, keys = builder_.inputs.window_rows,
                  row = builder_.inputs.key_row, start = builder_.inputs.document_start;
    const int64_t chunk = builder_.options.attention_chunk;
    std::vector<ValueId> reads{q_, window_kv, compressed, topk, row, start};
    if (halo.valid()) reads.insert(reads.end(), {halo, keys});
    program_.segment(
        name_ + ".teacher", reads, {attention}, {sink},
        [=, q = q_, shape = attention_shape(builder_), windowed = builder_.options.losses.window_in_teacher](SegmentRun& run) {
          const at::NoGradGuard constant;
          run.choose(attention, [&] {
            return kernels::chosen_attention(run.read(q), window_keys(run, window_kv, halo, keys), run.read(compressed),
                                             run.read(topk), run.parameter(sink), run.read(row), run.read(start), shape,
                                             windowed);
          });
        });
    const ValueId index_keys = builder_.published.index_keys;
    program_.segment(name_ + ".student", {index_q_, index_weights_, index_keys, topk}, {scores}, {},
                     [=, index_q = index_q_, index_weights = index_weights_, heads = text_.index_n_heads](SegmentRun& run) {
                       const kernels::IndexQueries queries{run.read(index_q), run.read(index_weights), {}, {}, heads};
                       run.make(scores, kernels::chosen_scores(queries, run.read(index_keys), run.read(topk), chunk));
                     });
    const ValueId all_attention = program_.launch(name_ + ".chosen_attention", ExchangeKind::kAllReduce, "tp", attention),
                  all_scores = program_.launch(name_ + ".chosen_scores", ExchangeKind::kAllReduce, "tp", scores);
    program_.wait(all_attention);
    program_.wait(all_scores);
    const ValueId loss = program_.value(layer + ".indexer_loss", {}), counted = builder_.inputs.counted;
    program_.segment(name_ + ".indexer_loss", {all_attention, all_scores, topk, counted}, {loss}, {}, [=](SegmentRun& run) {
      const at::Tensor token_loss = kernels::indexer_loss(run.read(all_scores), run.read(all_attention), run.read(topk));
      run.observe(layer + ".indexer_token_loss", "tokens", [&] { return token_loss; });
      run.make(loss, (token_loss * run.read(counted)).sum());
    });
    builder_.indexer_losses.push_back(loss);
  }

  void add_dense_indexer_loss(ParameterId sink, ValueId halo, ValueId window_kv) {
    const std::string layer = layer_name(layer_);
    const ValueId compressed = builder_.published.compressed, index_keys = builder_.published.index_keys,
                  keys = builder_.inputs.window_rows, row = builder_.inputs.key_row, start = builder_.inputs.document_start,
                  counted = builder_.inputs.counted, loss = program_.value(layer + ".indexer_loss", {});
    std::vector<ValueId> reads{index_q_,      index_weights_, index_keys, q_,    window_kv, compressed,
                               groups_.first, groups_.count,  row,        start, counted};
    if (halo.valid()) reads.insert(reads.end(), {halo, keys});
    program_.segment(
        name_ + ".dense_loss", reads, {loss}, {sink},
        [=, index_q = index_q_, index_weights = index_weights_, groups = groups_, q = q_, heads = text_.index_n_heads,
         shape = attention_shape(builder_), windowed = builder_.options.losses.window_in_teacher](SegmentRun& run) {
          const auto sum_over_tp = [&](const at::Tensor& part) {
            return run.group("tp").all_reduce(part, layer + ".dense_loss").wait();
          };
          const kernels::IndexQueries queries{
              run.read(index_q), run.read(index_weights), run.read(groups.first), run.read(groups.count), heads, sum_over_tp};
          const kernels::DenseTeacher teacher{run.read(q).detach(),
                                              window_keys(run, window_kv, halo, keys).detach(),
                                              run.read(compressed).detach(),
                                              run.parameter(sink).detach(),
                                              run.read(row),
                                              run.read(start),
                                              shape,
                                              windowed};
          run.make(loss, kernels::dense_indexer_loss(queries, run.read(index_keys), teacher, run.read(counted)));
        });
    builder_.indexer_losses.push_back(loss);
  }

  // This rank's heads: its part of the layer's output.
  ValueId add_attend(ValueId halo) {
    const AttentionOutput output = add_attention_output(builder_, prefix_);
    const ValueId row = builder_.inputs.key_row, start = builder_.inputs.document_start, keys = builder_.inputs.window_rows;
    const ValueId out = program_.value(name_ + ".partial", {"tokens", text_.hidden_size});
    const ValueId compressed = ratio_ > 0 ? builder_.published.compressed : ValueId{},
                  topk = ratio_ > 0 && !is_dense() ? builder_.topk : ValueId{};
    if (halo.valid()) program_.wait(halo);
    const ValueId window_kv = add_continued(builder_, window_kv_, KeptRows::Kind::kWindow);
    if (trains_indexer() && text_.is_index_source(layer_)) {
      is_dense() ? add_dense_indexer_loss(output.sink, halo, window_kv) : add_indexer_loss(output.sink, halo, window_kv);
    }
    std::vector<ValueId> reads{q_, window_kv, row, start, rope_.cos, rope_.sin};
    if (halo.valid()) reads.insert(reads.end(), {halo, keys});
    if (compressed.valid()) reads.push_back(compressed);
    if (topk.valid()) reads.push_back(topk);
    const bool dense = ratio_ > 0 && is_dense();
    if (dense) reads.insert(reads.end(), {groups_.first, groups_.count});
    program_.segment(
        name_ + ".attend", reads, {out}, {output.sink, output.wo_a, output.wo_b},
        [=, q = q_, rope = rope_, groups = groups_, shape = attention_shape(builder_)](SegmentRun& run) {
          const at::Tensor near_kv = window_keys(run, window_kv, halo, keys);
          const at::Tensor far_kv = compressed.valid() ? run.read(compressed) : at::Tensor();
          const at::Tensor far = topk.valid() ? run.read(topk) : at::Tensor();
          const at::Tensor sink = run.parameter(output.sink);
          at::Tensor mixed;
          if (dense) {
            mixed = kernels::dense_attention(run.read(q), near_kv, far_kv, {run.read(groups.first), run.read(groups.count)}, sink,
                                             run.read(row), run.read(start), shape);
          } else {
            mixed = kernels::csa2_attention(run.read(q), near_kv, far_kv, far, sink, run.read(row), run.read(start), shape);
          }
          run.make(out, output(run, mixed, table_of(run, rope)));
        });
    return out;
  }

  ModelBuilder& builder_;
  engine::ProgramBuilder& program_;
  const TextConfig& text_;
  const int64_t layer_;
  ValueId x_;  // of all tokens of the cp rank, once the region is entered
  const int64_t ratio_;
  const std::string prefix_, name_;
  const RopeValues rope_;
  ModelInputs::Groups groups_;
  ValueId window_kv_, compressed_kv_, index_k_, q_res_, q_, index_q_, index_weights_;
};

}  // namespace

ValueId add_attention(ModelBuilder& builder, int64_t layer, ValueId x) {
  return AttentionLayer(builder, layer, x).add();
}

}  // namespace hyperparallel::models::deepseek_v41
