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

RopeValues add_table(ModelBuilder& builder, const std::string& name, ValueId positions, const char* rows,
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

void add_inputs(ModelBuilder& builder, bool text, bool vision) {
  ModelInputs& in = builder.inputs;
  const auto discrete = [&](const std::string& name, engine::Shape shape) {
    return builder.program.input(name, ValueKind::kDiscrete, std::move(shape));
  };
  if (text) {
    in.ids = discrete("ids", {"tokens"});
    if (!builder.options.cached) in.targets = discrete("targets", {"tokens"});
    in.positions = discrete("positions", {"tokens"});            // within the document
    in.document_start = discrete("document_start", {"tokens"});  // row of the document's first window key
    in.key_row = discrete("key_row", {"tokens"});                // row of the token's own window key
    in.image = discrete("image", {"tokens"});
    in.closed = discrete("closed", {"tokens"});  // Engram gates stay shut: image positions and padding
    in.padding = discrete("padding", {"tokens"});
    for (int64_t ratio : ratios_of(builder.text())) {
      const std::string name = "groups." + std::to_string(ratio);
      in.groups[ratio] = {discrete(name + ".first", {"tokens"}),      // the first group of the token's document
                          discrete(name + ".count", {"tokens"}),      // groups visible to the token
                          discrete(name + ".tokens", {name, ratio}),  // the tokens of each group
                          discrete(name + ".positions", {name})};     // position of a group: that of its first token
    }
    if (!builder.text().engram_layer_ids.empty()) {
      in.engram_rows = discrete("engram.rows", {"tokens", static_cast<int64_t>(builder.text().engram_layer_ids.size()),
                                                builder.text().engram_columns()});
    }
  }
  if (text && builder.options.cached) add_kept_rows(builder);
  if (vision) {
    const VisionConfig& config = *builder.config.vision;
    in.patches = builder.program.input("patches", ValueKind::kDifferentiable,
                                       {"patches", 3 * config.patch_size * config.patch_size}, builder.options.patch_gradient);
    in.patch_rows = discrete("patch_rows", {"patches"});
    in.patch_columns = discrete("patch_columns", {"patches"});
    in.image_patches = discrete("image_patches", {"images"});  // patches of each image
    in.unshuffle = discrete(
        "unshuffle", {"aligned", config.downsample_ratio * config.downsample_ratio});  // patches of an aligner row, -1: outside
    in.span_source = discrete("span_source", {"span_tokens"});  // 0 START, 1 NEW_LINE, 2 END, 3 + r: aligner row r
    if (text) {
      in.span_index = discrete("span_index", {"tokens"});  // span token at this position, -1: text
    } else {
      in.cotangent = discrete("cotangent", {"span_tokens", builder.text().hidden_size});
    }
  }
}

void add_rope_tables(ModelBuilder& builder) {
  const TextConfig& text = builder.text();
  builder.rope_main = add_table(builder, "rope.main", builder.inputs.positions, "tokens", text.rope_main);
  if (ratios_of(text).empty()) return;
  builder.rope_compress = add_table(builder, "rope.compress", builder.inputs.positions, "tokens", text.rope_compress);
  for (int64_t ratio : ratios_of(text)) {
    const std::string groups = "groups." + std::to_string(ratio);
    builder.rope_of_groups[ratio] =
        add_table(builder, "rope." + groups, builder.inputs.groups[ratio].positions, groups.c_str(), text.rope_compress);
  }
}

namespace {

// Documents of a batch and what each continues.
struct Documents {
  int64_t count, tokens;
  at::Tensor borders;           // int64 [count + 1]
  std::vector<int64_t> length;  // [count]: tokens before this run

  Documents(const ModelBatch& batch, const Prefix* prefix)
      : count(batch.cu_seqlens.size(0) - 1), tokens(batch.ids.size(0)), borders(batch.cu_seqlens.contiguous()), length(count, 0) {
    HP_CHECK(count >= 0 && border(0) == 0 && border(count) == tokens, "document borders end at {}, the batch at {}",
             border(count), tokens);
    for (int64_t d = 0; d < count; ++d) HP_CHECK(border(d) <= border(d + 1), "document {} ends before it starts", d);
    if (prefix == nullptr) return;
    HP_CHECK(static_cast<int64_t>(prefix->sequences.size()) == count, "{} documents continue {} sequences", count,
             prefix->sequences.size());
    for (int64_t d = 0; d < count; ++d) length[d] = prefix->sequences[d].length;
  }
  int64_t border(int64_t d) const { return borders.const_data_ptr<int64_t>()[d]; }
  int64_t added(int64_t d) const { return border(d + 1) - border(d); }
  // Row where each document begins when documents lie one after another with the rows they kept before the new ones.
  std::vector<int64_t> first_rows(const KeptRows& rows, const TextConfig& text) const {
    std::vector<int64_t> first{0};
    for (int64_t d = 0; d < count; ++d)
      first.push_back(first.back() + rows.kept(text, length[d]) + rows.added(length[d], added(d)));
    return first;
  }
};

void prepare_window(const ModelProgram& model, const Documents& documents, engine::ValueMap& map) {
  const KeptRows window{KeptRows::Kind::kWindow};
  const std::vector<int64_t> first = documents.first_rows(window, model.config.text);
  std::vector<int64_t> position, start, row;
  for (int64_t d = 0; d < documents.count; ++d) {
    const int64_t own = first[d] + window.kept(model.config.text, documents.length[d]);
    for (int64_t i = 0; i < documents.added(d); ++i)
      position.push_back(documents.length[d] + i), start.push_back(first[d]), row.push_back(own + i);
  }
  map[model.inputs.positions.index] = tensor_of(position);
  map[model.inputs.document_start.index] = tensor_of(start);
  map[model.inputs.key_row.index] = tensor_of(row);
}

void prepare_groups(const ModelProgram& model, const Documents& documents, int64_t ratio, const ModelInputs::Groups& groups,
                    engine::ValueMap& map) {
  const KeptRows group_rows{KeptRows::Kind::kGroups, ratio}, input_rows{KeptRows::Kind::kGroupInputs, ratio};
  const std::vector<int64_t> first_group = documents.first_rows(group_rows, model.config.text);
  const std::vector<int64_t> first_input = documents.first_rows(input_rows, model.config.text);
  std::vector<int64_t> first, count, members, position;
  for (int64_t d = 0; d < documents.count; ++d) {
    const int64_t before = documents.length[d], old_groups = before / ratio;
    for (int64_t g = old_groups; g < (before + documents.added(d)) / ratio; ++g) {
      position.push_back(g * ratio);
      for (int64_t i = 0; i < ratio; ++i) members.push_back(first_input[d] + (g - old_groups) * ratio + i);
    }
    for (int64_t i = 0; i < documents.added(d); ++i) first.push_back(first_group[d]), count.push_back((before + i + 1) / ratio);
  }
  map[groups.first.index] = tensor_of(first);
  map[groups.count.index] = tensor_of(count);
  map[groups.tokens.index] = tensor_of(members).view({-1, ratio});
  map[groups.positions.index] = tensor_of(position);
}

void prepare_prefix(const ModelProgram& model, const Documents& documents, const Prefix& prefix, at::ScalarType compute,
                    engine::ValueMap& map) {
  const ModelInputs& in = model.inputs;
  for (const ContinuedRows& rows : in.continued) {
    const size_t i = &rows - in.continued.data();
    const int64_t width = model.program.values[rows.past.index].shape[1].size;
    map[rows.past.index] = prefix.pools.empty() ? at::empty({0, width}, at::TensorOptions().dtype(compute)) : prefix.pools[i];
  }
  for (size_t k = 0; k < in.kept.size(); ++k) {
    std::vector<int64_t> gather;
    int64_t fresh = prefix.pool_rows(in, k);
    for (int64_t d = 0; d < documents.count; ++d) {
      const int64_t kept = in.kept[k].kept(model.config.text, documents.length[d]);
      for (int64_t i = 0; i < kept; ++i) gather.push_back(prefix.sequences[d].ends[k] - kept + i);
      for (int64_t i = 0; i < in.kept[k].added(documents.length[d], documents.added(d)); ++i) gather.push_back(fresh++);
    }
    map[in.kept[k].gather.index] = tensor_of(gather);
  }
  map[in.logit_rows.index] = documents.borders.slice(0, 1) - 1;
}

void prepare_documents(const ModelProgram& model, const ModelBatch& batch, at::ScalarType compute, const Prefix* prefix,
                       engine::ValueMap& map) {
  HP_CHECK((prefix != nullptr) == model.options.cached, "a prefix goes with a cached program");
  const Documents documents(batch, prefix);
  prepare_window(model, documents, map);
  for (const auto& [ratio, groups] : model.inputs.groups) prepare_groups(model, documents, ratio, groups, map);
  if (prefix != nullptr) prepare_prefix(model, documents, *prefix, compute, map);
}

// Patch coordinates, aligner windows and span layouts of all images, facts.md 2.2 and 2.3.
void prepare_images(const ModelProgram& model, const ModelBatch& batch, engine::ValueMap& map, at::ScalarType compute) {
  const int64_t down = model.config.vision->downsample_ratio, images = batch.grids.size(0);
  const at::Tensor grids = batch.grids.contiguous();
  const int64_t* grid = grids.const_data_ptr<int64_t>();
  std::vector<int64_t> row, column, patches_of, window, source, index;
  if (model.inputs.span_index.valid()) index.assign(batch.ids.size(0), -1);
  int64_t first_patch = 0, aligned = 0;
  for (int64_t image = 0; image < images; ++image) {
    const int64_t rows = grid[2 * image], columns = grid[2 * image + 1];
    const int64_t out_rows = (rows + down - 1) / down, out_columns = (columns + down - 1) / down;
    patches_of.push_back(rows * columns);
    for (int64_t p = 0; p < rows * columns; ++p) row.push_back(p / columns), column.push_back(p % columns);
    const int64_t span_begin = static_cast<int64_t>(source.size());
    source.push_back(0);
    for (int64_t r = 0; r < out_rows; ++r) {
      for (int64_t c = 0; c < out_columns; ++c) {
        source.push_back(3 + aligned++);
        for (int64_t k = 0; k < down * down; ++k) {
          const int64_t y = r * down + k / down, x = c * down + k % down;
          window.push_back(y < rows && x < columns ? first_patch + y * columns + x : -1);
        }
      }
      source.push_back(1);
    }
    source.push_back(2);
    if (!index.empty()) {
      const int64_t start = batch.image_starts[image].item<int64_t>(), length = static_cast<int64_t>(source.size()) - span_begin;
      HP_CHECK(start >= 0 && start + length <= batch.ids.size(0), "image {} of {} tokens starts at {}", image, length, start);
      for (int64_t i = 0; i < length; ++i) index[start + i] = span_begin + i;
    }
    first_patch += rows * columns;
  }
  HP_CHECK(first_patch == batch.patches.size(0), "{} patches for grids of {}", batch.patches.size(0), first_patch);
  map[model.inputs.patches.index] = batch.patches.to(compute);
  map[model.inputs.patch_rows.index] = tensor_of(row);
  map[model.inputs.patch_columns.index] = tensor_of(column);
  map[model.inputs.image_patches.index] = tensor_of(patches_of);
  map[model.inputs.unshuffle.index] = tensor_of(window).view({-1, down * down});
  map[model.inputs.span_source.index] = tensor_of(source);
  if (model.inputs.span_index.valid()) map[model.inputs.span_index.index] = tensor_of(index);
}

}  // namespace

engine::ValueMap prepare_inputs(const ModelProgram& model, const ModelBatch& batch, at::ScalarType compute,
                                const Prefix* prefix) {
  engine::ValueMap map;
  const ModelInputs& in = model.inputs;
  if (in.patches.valid()) prepare_images(model, batch, map, compute);
  if (!in.ids.valid()) return map;
  prepare_documents(model, batch, compute, prefix, map);
  at::Tensor ids = batch.ids;
  if (in.span_index.valid()) ids = ids.masked_fill(map.at(in.span_index.index).ge(0), -1);  // spans are not looked up
  map[in.ids.index] = ids;
  if (in.targets.valid()) map[in.targets.index] = batch.targets;
  map[in.image.index] = batch.image_mask;
  map[in.closed.index] = batch.image_mask.logical_or(batch.padding);
  map[in.padding.index] = batch.padding;
  if (in.engram_rows.valid()) map[in.engram_rows.index] = batch.engram_rows;
  return map;
}

}  // namespace hyperparallel::models::deepseek_v41
