// DSpark draft layers: docs/model.md, Draft layers.
#include <ATen/core/grad_mode.h>

#include <cmath>

#include "engine/draft_scores.h"
#include "kernels/attention/op.h"
#include "kernels/mhc/op.h"
#include "kernels/norm/op.h"
#include "kernels/quantise/op.h"
#include "kernels/rows/op.h"
#include "kernels/types.h"
#include "models/deepseek_v41/attention_parts.h"

namespace hyperparallel::models::deepseek_v41 {

using engine::Initialiser;
using engine::Loss;
using engine::ParameterId;
using engine::SegmentRun;
using engine::UpdateHint;
using engine::ValueId;

namespace {

// A sum of which every tp rank has a part: the whole as value, with the gradient of the part.
at::Tensor with_value_of_all(SegmentRun& run, const at::Tensor& part, const std::string& name) {
  const at::Tensor constant = part.detach();
  return part + (run.group("tp").all_reduce(constant, name).wait() - constant);
}

// Binary cross-entropy of logits, each for itself.
at::Tensor logit_loss(const at::Tensor& logits, const at::Tensor& target) {
  return logits.clamp_min(0) - logits * target + logits.abs().neg().exp().log1p();
}

class DraftStack {
 public:
  DraftStack(ModelBuilder& builder, ValueId final_hidden)
      : builder_(builder),
        program_(builder.program),
        text_(builder.text()),
        in_(builder.inputs.draft),
        last_(text_.num_nextn_predict_layers - 1),
        final_hidden_(final_hidden) {}

  void add() {
    add_main();
    builder_.rows = {"draft.tokens", "draft.shard", in_.tp_rows};
    builder_.row_kinds = {in_.image, in_.padding, {}, {}};
    rope_ = add_rope_table(builder_, "rope.draft", in_.positions, builder_.rows.tokens, text_.rope_main);
    BlockBorder border{add_embedding(), {}};
    border.pre = add_first_mix(builder_, "draft.pre", border.streams);
    for (int64_t stage = 0; stage <= last_; ++stage) {
      const std::string name = "mtp." + std::to_string(stage);
      const Block block{name, name + ".", text_.draft.n_routed_experts, text_.draft.num_experts_per_tok};
      program_.begin_region(name);
      const auto [streams, attn] = enter_block(builder_, block, border);
      const auto [mid, ffn] = add_mix_boundary(builder_, block, name + ".mid", attn, add_attention(block, attn.x), streams, "ffn");
      program_.close_unit(name);
      border = leave_block(builder_, block, ffn, add_moe(builder_, block, ffn.x), mid, /*writes=*/stage == last_);
      program_.end_region();
    }
    add_ends(border.streams, border.pre);
  }

 private:
  std::string last(const std::string& name) const { return "mtp." + std::to_string(last_) + "." + name; }

  // What the draft layers see of the model: of all tokens, one row for all blocks.
  void add_main() {
    const int64_t d = text_.hidden_size;
    builder_.partial = builder_.layout().sequence_parallel;
    const ParameterId proj =
        builder_.weight("mtp.0.main_proj.weight", {d, d * static_cast<int64_t>(builder_.draft_targets.size())});
    const ParameterId norm = builder_.gain("mtp.0.main_norm.weight", d);
    program_.close_unit("draft.main");
    const ValueId x = program_.value("draft.main_x", {builder_.stream_rows(), d});
    program_.segment("draft.main", builder_.draft_targets, {x}, {proj, norm},
                     [=, targets = builder_.draft_targets, eps = text_.rms_norm_eps](SegmentRun& run) {
                       std::vector<at::Tensor> layers;
                       for (ValueId target : targets) layers.push_back(run.read(target));
                       run.make(
                           x, kernels::rms_norm(engine::linear(at::cat(layers, 1), run.weight(proj)), run.parameter(norm), eps));
                     });
    main_x_ = enter_tokens(builder_, "draft.main_x.all", x);
    // And its own distributions, from the final hidden states at the slots' positions.
    model_hidden_ = program_.choice("draft.model_hidden", {"tokens", d});
    program_.segment("draft.model_hidden", {final_hidden_}, {model_hidden_}, {},
                     [=, from = final_hidden_, to = model_hidden_](SegmentRun& run) { run.make(to, run.read(from).detach()); });
    received_hidden_ = launch_halo(builder_, "draft.model_hidden.halo", "cp", model_hidden_, in_.model_hidden);
  }

  // The anchor's token, then noise: the model's embedding, which stands still here.
  ValueId add_embedding() {
    const ValueId part = program_.choice("draft.embeds.partial", {builder_.rows.tokens, text_.hidden_size}), ids = in_.ids;
    program_.segment("draft.embed", {ids}, {part}, {builder_.embedding.table}, [=, table = builder_.embedding](SegmentRun& run) {
      const at::NoGradGuard constant;
      run.make(part, look_up(run, table, run.read(ids)));
    });
    return copy_to_streams(builder_, "draft.", leave_tokens(builder_, "draft.embeds", part));
  }

  // Every slot of a block sees the window before the anchor, and all slots of its block.
  ValueId add_attention(const Block& block, ValueId streams_x) {
    const int64_t hd = text_.head_dim;
    const std::string prefix = block.parameters + "attn.", name = block.name + ".attn";
    builder_.partial = true;
    const ValueId x = enter_tokens(builder_, name + ".x", streams_x), main = main_x_;
    const ParameterId wkv = builder_.weight(prefix + "wkv.weight", {hd, text_.hidden_size});
    const ParameterId norm = builder_.gain(prefix + "kv_norm.weight", hd);
    const ValueId main_kv = program_.value(block.name + ".main_kv", {"tokens", hd}),
                  own_kv = program_.value(block.name + ".draft_kv", {builder_.rows.tokens, hd});
    const RopeValues main_rope = builder_.rope_main, rope = rope_;
    program_.segment(name + ".kv", {main, x, main_rope.cos, main_rope.sin, rope.cos, rope.sin}, {main_kv, own_kv}, {wkv, norm},
                     [=, eps = text_.rms_norm_eps, quantised = builder_.config.switches.cache_quantisation](SegmentRun& run) {
                       const auto kv_of = [&](ValueId from, const RopeValues& at) {
                         const at::Tensor kv =
                             kernels::rms_norm(engine::linear(run.read(from), run.weight(wkv)), run.parameter(norm), eps);
                         const at::Tensor rotated = kernels::apply_rope(kv, table_of(run, at));
                         return quantised ? kernels::fp8_window(rotated) : rotated;
                       };
                       run.make(main_kv, kv_of(main, main_rope));
                       run.make(own_kv, kv_of(x, rope));
                     });
    const ValueId halo = launch_halo(builder_, name + ".window_halo", "cp", main_kv, in_.window);
    const ValueId q = add_queries(builder_, name, prefix, x, rope_).q;
    program_.wait(halo);
    const AttentionOutput output = add_attention_output(builder_, prefix);
    const ValueId out = program_.value(name + ".partial", {builder_.rows.tokens, text_.hidden_size});
    program_.segment(
        name + ".attend",
        {q, main_kv, halo, own_kv, in_.window_rows, in_.slots_of_block, in_.key_row, in_.key_start, rope.cos, rope.sin}, {out},
        {output.sink, output.wo_a, output.wo_b}, [=, in = in_, shape = attention_shape(builder_)](SegmentRun& run) {
          const at::Tensor keys = arranged_keys(run.read(main_kv), run.read(halo), run.read(in.window_rows));
          const at::Tensor mixed =
              kernels::csa2_attention(run.read(q), keys, run.read(own_kv), run.read(in.slots_of_block),
                                      run.parameter(output.sink), run.read(in.key_row), run.read(in.key_start), shape);
          run.make(out, output(run, mixed, table_of(run, rope)));
        });
    return leave_tokens(builder_, block.name + ".attn_out", out);
  }

  void add_ends(ValueId streams, ValueId pre) {
    const int64_t d = text_.hidden_size, rank = text_.draft.markov_rank;
    builder_.partial = builder_.layout().sequence_parallel;
    const ParameterId norm = builder_.gain(last("norm.weight"), d);
    const ParameterId proj =
        builder_.master_leaf(last("confidence_head.proj.weight"), {1, d + rank}, Initialiser::normal(builder_.std()));
    const Vocabulary states_of =
        add_vocabulary(builder_, last("markov_head.embed.weight"), text_.vocab_size, rank, UpdateHint::vector());
    const Vocabulary state_head =
        add_vocabulary(builder_, builder_.markov_head(), text_.vocab_size, rank, UpdateHint::vector(), {"lm_head.weight"});
    program_.close_unit("draft.head");
    const std::string& rows = builder_.stream_rows();
    const ValueId hidden = program_.value("draft.hidden", {rows, d}), normed = program_.value("draft.normed", {rows, d});
    program_.segment("draft.final_norm", {streams, pre}, {hidden, normed}, {norm},
                     [=, eps = text_.rms_norm_eps](SegmentRun& run) {
                       const at::Tensor x = kernels::collapse(run.read(streams), run.read(pre));
                       run.make(hidden, x);
                       run.make(normed, kernels::rms_norm(x, run.parameter(norm), eps));
                     });
    const ValueId found = program_.value("draft.states.partial", {builder_.rows.tokens, rank}), previous = in_.previous;
    program_.segment("draft.states", {previous}, {found}, {states_of.table},
                     [=](SegmentRun& run) { run.make(found, look_up(run, states_of, run.read(previous))); });
    const ValueId states = leave_tokens(builder_, "draft.states", found);
    const ValueId confidence = program_.value("draft.confidence", {rows});
    program_.segment("draft.confidence", {hidden, states}, {confidence}, {proj}, [=](SegmentRun& run) {
      const at::Tensor x = kernels::to_math(at::cat({run.read(hidden), run.read(states)}, 1));
      run.make(confidence, at::linear(x, run.parameter(proj)).squeeze(1));
    });
    add_loss(state_head, enter_tokens(builder_, "draft.normed.all", normed), enter_tokens(builder_, "draft.states.all", states),
             enter_tokens(builder_, "draft.confidence.all", confidence));
  }

  void add_loss(const Vocabulary& state_head, ValueId normed, ValueId states, ValueId confidence) {
    const ValueId loss = program_.value("draft.loss", {});
    program_.wait(received_hidden_);
    program_.segment(
        "draft.loss", {normed, states, confidence, model_hidden_, received_hidden_, in_.model_rows, in_.targets, in_.slots},
        {loss}, {builder_.head.table, state_head.table},
        [=, in = in_, own_hidden = model_hidden_, received = received_hidden_, head = builder_.head,
         rule = builder_.options.losses.draft, block = text_.draft.block_size,
         chunk = builder_.options.cross_entropy_chunk](SegmentRun& run) {
          const at::Tensor &x = run.read(normed), &logit = run.read(confidence), &slots = run.read(in.slots);
          const at::Tensor of_model =
              kernels::gather_rows(with_received(run.read(own_hidden), run.read(received)), run.read(in.model_rows));
          const at::Tensor weights = slot_weights(slots, rule.decay, logit.scalar_type());
          // With whole tables a tp rank scores its rows; else all rows with its words.
          const bool whole = head.parts > 1;
          const engine::VocabularyPart part =
              whole ? engine::VocabularyPart{} : engine::VocabularyPart{&run.group("tp"), head.first};
          const at::Tensor targets = run.read(in.targets),
                           own_targets = own_part(targets, run.group("tp").size(), run.group("tp").rank(), -1);
          engine::DraftScores scores =
              engine::draft_scores(x, run.read(states), of_model, whole ? own_targets : targets, weights, run.weight(head.table),
                                   run.weight(state_head.table), {rule.cross_entropy, rule.distance}, chunk, part);
          if (whole) {
            scores.loss = with_value_of_all(run, scores.loss, "draft.loss");
            for (at::Tensor* rows : {&scores.cross_entropy, &scores.distance, &scores.hit})
              *rows = run.group("tp").all_reduce(*rows, "draft.scores").wait();
          }
          const at::Tensor accept = (1 - scores.distance / 2).clamp(0, 1);
          const at::Tensor each = logit_loss(logit, rule.hard_confidence ? scores.hit : accept);
          const at::Tensor is_own = own_targets.ge(0);
          const at::Tensor confident = with_value_of_all(run, (each * weights * is_own).sum(), "draft.confidence_loss");
          run.make(loss, scores.loss + rule.confidence * confident);
          const auto count = [&](const at::Tensor& which) {
            return at::bincount(slots.index_select(0, which.nonzero().flatten()), {}, block);
          };
          run.count("draft.slots", at::stack({count(is_own), count(is_own.logical_and(scores.hit.gt(0)))}));
          run.observe("draft.cross_entropy", "draft.tokens", [&] { return scores.cross_entropy; });
          run.observe("draft.distance", "draft.tokens", [&] { return scores.distance; });
          run.observe("draft.hit", "draft.tokens", [&] { return scores.hit; });
          run.observe("draft.confidence_loss", "draft.tokens", [&] { return each; });
        });
    program_.loss({loss, "draft", Loss::Per::kModelUnits, builder_.options.losses.draft.weight});
  }

  ModelBuilder& builder_;
  engine::ProgramBuilder& program_;
  const TextConfig& text_;
  const ModelInputs::Draft in_;
  const int64_t last_;
  const ValueId final_hidden_;
  ValueId main_x_, model_hidden_, received_hidden_;
  RopeValues rope_;
};

}  // namespace

at::Tensor slot_weights(const at::Tensor& slots, double decay, at::ScalarType type) {
  const at::Tensor k = slots.to(type);
  return decay > 0 ? (k * (-1 / decay)).exp_() : at::ones_like(k);
}

void add_draft_target(ModelBuilder& builder, ValueId streams) {
  const std::string name = "draft.target." + std::to_string(builder.draft_targets.size());
  const ValueId mean = builder.program.choice(name, {builder.stream_rows(), builder.text().hidden_size});
  builder.program.segment(name, {streams}, {mean}, {}, [=](SegmentRun& run) {
    const at::NoGradGuard constant;
    const at::Tensor& x = run.read(streams);
    run.make(mean, kernels::to_math(x).mean(1).to(x.scalar_type()));
  });
  builder.draft_targets.push_back(mean);
}

void add_draft_layers(ModelBuilder& builder, ValueId final_hidden) {
  DraftStack(builder, final_hidden).add();
}

}  // namespace hyperparallel::models::deepseek_v41
