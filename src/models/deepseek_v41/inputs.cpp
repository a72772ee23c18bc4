#include <algorithm>
#include <set>

#include "base/error.h"
#include "kernels/rope/op.h"
#include "kernels/rows/op.h"
#include "models/deepseek_v41/builder.h"
#include "models/deepseek_v41/prefix.h"

namespace hyperparallel::models::deepseek_v41 {

using engine::SegmentRun;
using engine::ValueId;
using engine::ValueKind;

namespace {

std::set<int64_t> ratios_of(const TextConfig& text) {
  std::set<int64_t> ratios(text.compress_ratios.begin(), text.compress_ratios.begin() + text.num_hidden_layers);
  ratios.erase(0);
  return ratios;
}

std::vector<double> frequencies_of(const RopeParameters& rope, int64_t dim) {
  if (!rope.yarn) return kernels::rope_frequencies(dim, rope.theta);
  return kernels::yarn_frequencies(dim, rope.theta, rope.factor, rope.beta_fast, rope.beta_slow,
                                   rope.original_max_position_embeddings);
}

}  // namespace

RopeValues add_rope_table(ModelBuilder& builder, const std::string& name, ValueId positions, const std::string& rows,
                          const RopeParameters& rope) {
  const int64_t dim = builder.text().qk_rope_head_dim;
  RopeValues values{builder.program.choice(name + ".cos", {rows, dim / 2}),
                    builder.program.choice(name + ".sin", {rows, dim / 2})};
  builder.program.segment(
      name, {positions}, {values.cos, values.sin}, {}, [=, frequencies = frequencies_of(rope, dim)](SegmentRun& run) {
        const kernels::RopeTable table = kernels::rope_table(run.read(positions), frequencies, run.math_type());
        run.make(values.cos, table.cos);
        run.make(values.sin, table.sin);
      });
  return values;
}

namespace {

// What sequences keep. Layers of one ratio keep rows of the same tokens.
void add_kept_rows(ModelBuilder& builder) {
  ModelInputs& in = builder.inputs;
  const auto add = [&](KeptRows::Kind kind, int64_t ratio, const std::string& name) {
    in.kept.push_back({kind, ratio, builder.program.input(name + ".gather", ValueKind::kDiscrete, {name + ".all"})});
  };
  add(KeptRows::Kind::kWindow, 0, "window");
  for (int64_t ratio : ratios_of(builder.text())) {
    add(KeptRows::Kind::kGroups, ratio, "groups." + std::to_string(ratio));
    if (ratio > 1) add(KeptRows::Kind::kGroupInputs, ratio, "group_inputs." + std::to_string(ratio));
  }
  in.logit_rows = builder.program.input("logit_rows", ValueKind::kDiscrete, {"documents"});
}

}  // namespace

ValueId add_continued(ModelBuilder& builder, ValueId fresh, KeptRows::Kind kind, int64_t ratio) {
  if (!builder.options.cached) return fresh;
  std::vector<KeptRows>& kept = builder.inputs.kept;
  const auto rows = std::find_if(kept.begin(), kept.end(), [&](const KeptRows& k) { return k.kind == kind && k.ratio == ratio; });
  HP_CHECK(rows != kept.end(), "no rows of ratio {} are kept", ratio);
  const engine::ValueSpec spec = builder.program.spec(fresh);
  const engine::ValueSpec gather_spec = builder.program.spec(rows->gather);
  const ValueId past = builder.program.input(spec.name + ".past", spec.kind, {gather_spec.name + ".past", spec.shape[1]});
  const engine::Shape shape{gather_spec.shape[0], spec.shape[1]};
  const ValueId all = spec.kind == ValueKind::kDiscrete ? builder.program.choice(spec.name + ".all", shape)
                                                        : builder.program.value(spec.name + ".all", shape);
  builder.program.segment(spec.name + ".continue", {past, fresh, rows->gather}, {all}, {},
                          [=, gather = rows->gather](SegmentRun& run) {
                            run.make(all, kernels::gather_rows(at::cat({run.read(past), run.read(fresh)}), run.read(gather)));
                          });
  builder.program.output(all);
  builder.inputs.continued.push_back({static_cast<size_t>(rows - kept.begin()), past, all});
  return all;
}

namespace {

void add_groups(ModelBuilder& builder, int64_t ratio) {
  const std::string name = "groups." + std::to_string(ratio);
  const auto discrete = [&](const std::string& which, engine::Shape shape) {
    return builder.program.input(name + which, ValueKind::kDiscrete, std::move(shape));
  };
  ModelInputs::Groups groups;
  groups.first = discrete(".first", {"tokens"});       // the first group of the token's document
  groups.count = discrete(".count", {"tokens"});       // groups visible to the token
  groups.tokens = discrete(".tokens", {name, ratio});  // compressor inputs of each own group, as rows of [own; received]
  groups.positions = discrete(".positions", {name});   // position of a group: that of its first token
  // Groups that each cp rank makes: those whose last token it has.
  groups.rows = discrete(".rows", {builder.layout().size("cp")});
  if (!builder.options.cached && ratio > 1) groups.halo = add_halo_inputs(builder, name, "cp");
  if (builder.layout().balanced) groups.order = discrete(".order", {name + ".gathered"});  // gathered row of each group
  builder.inputs.groups[ratio] = groups;
}

}  // namespace

namespace {

void add_draft_inputs(ModelBuilder& builder) {
  const int64_t block = builder.text().draft.block_size;
  const auto discrete = [&](const std::string& name, engine::Shape shape) {
    return builder.program.input("draft." + name, ValueKind::kDiscrete, std::move(shape));
  };
  const char *tokens = "draft.tokens", *shard = "draft.shard";
  ModelInputs::Draft in;
  in.ids = discrete("ids", {tokens});                               // the anchor's token, then noise
  in.previous = discrete("previous", {tokens});                     // the token at the slot's position
  in.targets = discrete("targets", {tokens});                       // the token behind it; -1: not scored
  in.slots = discrete("slots", {tokens});                           // 0 .. block size - 1
  in.positions = discrete("positions", {tokens});                   // in the document
  in.slots_of_block = discrete("slots_of_block", {tokens, block});  // int32, rows of the own block
  in.tp_rows = discrete("tp_rows", {builder.layout().size("tp")});
  in.image = discrete("image", {shard});  // none is
  in.padding = discrete("padding", {shard});
  in.window = add_halo_inputs(builder, "draft.window", "cp");
  in.window_rows = discrete("window.rows", {"draft.window.keys"});  // the model's keys in order, as rows of [own; received]
  in.key_row = discrete("key_row", {tokens});                       // the last key before the anchor; below key_start: none
  in.key_start = discrete("key_start", {tokens});
  in.model_hidden = add_halo_inputs(builder, "draft.model_hidden.halo", "cp");
  in.model_rows = discrete("model_rows", {tokens});  // of the slot's position among [own; received]; -1: none
  builder.inputs.draft = in;
}

}  // namespace

void add_inputs(ModelBuilder& builder, bool text, bool vision) {
  ModelInputs& in = builder.inputs;
  const auto discrete = [&](const std::string& name, engine::Shape shape) {
    return builder.program.input(name, ValueKind::kDiscrete, std::move(shape));
  };
  if (text) {
    static_cast<TokenInputs&>(in) = add_token_inputs(builder, /*targets=*/!builder.options.cached);
    in.document_start = discrete("document_start", {"tokens"});  // row of the document's first window key
    in.key_row = discrete("key_row", {"tokens"});                // row of the token's own window key
    in.image = discrete("image", {"shard"});
    in.closed = discrete("closed", {"shard"});  // Engram gates stay shut: image positions and padding
    in.padding = discrete("padding", {"shard"});
    if (builder.has_balance_loss()) {
      in.sequence = discrete("sequence", {"shard"});                      // the document of each token; -1: padding
      in.sequence_lengths = discrete("sequence.lengths", {"sequences"});  // tokens of each, padding left out
    }
    builder.row_kinds = {in.image, in.padding, in.sequence, in.sequence_lengths};
    if (builder.has_indexer_loss()) in.counted = discrete("counted", {"tokens"});  // bool: no padding
    if (!builder.options.cached) {
      in.window = add_halo_inputs(builder, "window", "cp");       // keys that the windows of other ranks reach
      in.window_rows = discrete("window.rows", {"window.keys"});  // window keys in order, as rows of [own; received]
    }
    for (int64_t ratio : ratios_of(builder.text())) add_groups(builder, ratio);
    for (size_t i = 0; i < builder.text().engram_layer_ids.size(); ++i) {
      const std::string name = "engram." + std::to_string(i);
      in.engram.push_back({discrete(name + ".rows", {name + ".unique"}),  // of the table, each once, ascending
                           discrete(name + ".send_rows", {builder.layout().size(builder.config.engram_axis())}),
                           discrete(name + ".found", {name + ".places"}),
                           builder.config.engram_axis()});  // [shard * columns]: which of them; -1: closed
    }
  }
  if (text && builder.options.cached) add_kept_rows(builder);
  if (text && builder.has_draft_layers()) add_draft_inputs(builder);
  if (vision) {
    const VisionConfig& config = *builder.config.vision;
    const int64_t ranks = builder.layout().size("stage"), members = builder.layout().size("vision");
    in.patches =
        builder.program.input("patches.sent", ValueKind::kDifferentiable,
                              {"patches.sent", 3 * config.patch_size * config.patch_size}, builder.options.patch_gradient);
    in.patch_send_rows = discrete("patches.send_rows", {ranks});
    in.patch_receive_rows = discrete("patches.receive_rows", {ranks});
    in.patch_rows = discrete("patch_rows", {"patches"});  // in its image
    in.patch_columns = discrete("patch_columns", {"patches"});
    in.image_patches = discrete("image_patches", {"images"});  // patches of each image of the group
    in.patch_parts = discrete("patch_parts", {members});       // patches of each rank of the group
    in.head_send_rows = discrete("patch_heads.send_rows", {members});
    in.head_receive_rows = discrete("patch_heads.receive_rows", {members});
    in.neighbours = add_halo_inputs(builder, "vision.neighbours", "vision");  // patches that aligner rows of other ranks cover
    // Patches of an aligner row, as rows of [own; received]; -1: outside.
    in.unshuffle = discrete("unshuffle", {"aligned", config.downsample_ratio * config.downsample_ratio});
    in.span_source = discrete("span_source", {"span_tokens"});  // 0 START, 1 NEW_LINE, 2 END, 3 + r: aligner row r
    if (text) {
      in.spans = add_halo_inputs(builder, "spans", "stage");  // span tokens go to the ranks of their positions
      in.span_index = discrete("span_index", {"tokens"});     // received span token that this rank adds at the position, or -1
    } else {
      in.cotangent = discrete("cotangent", {"span_tokens", builder.text().hidden_size});
    }
  }
}

void add_rope_tables(ModelBuilder& builder) {
  const TextConfig& text = builder.text();
  builder.rope_main = add_rope_table(builder, "rope.main", builder.inputs.positions, "tokens", text.rope_main);
  if (ratios_of(text).empty()) return;
  builder.rope_compress = add_rope_table(builder, "rope.compress", builder.inputs.positions, "tokens", text.rope_compress);
  for (int64_t ratio : ratios_of(text)) {
    const std::string groups = "groups." + std::to_string(ratio);
    builder.rope_of_groups[ratio] =
        add_rope_table(builder, "rope." + groups, builder.inputs.groups[ratio].positions, groups, text.rope_compress);
  }
}

}  // namespace hyperparallel::models::deepseek_v41
