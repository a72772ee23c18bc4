// Vision tower, aligner and image spans: docs/model.md, Vision.
#include <cmath>

#include "kernels/rows/op.h"
#include "kernels/types.h"
#include "models/deepseek_v41/builder.h"

namespace hyperparallel::models::deepseek_v41 {

using engine::ExchangeKind;
using engine::Initialiser;
using engine::ParameterId;
using engine::SegmentRun;
using engine::UpdateHint;
using engine::ValueId;

namespace {

constexpr double kVisionNormEps = 1e-6;

// The vision side keeps an FP32 gain and casts after it; the text side casts before.
at::Tensor vision_norm(const at::Tensor& x, const at::Tensor& gain) {
  const at::Tensor z = kernels::to_math(x);
  return (z * at::rsqrt(z.square().mean(-1, /*keepdim=*/true) + kVisionNormEps) * gain).to(x.scalar_type());
}

// Angles of the 2D rotary: first half of the channels' frequencies by row, second by column. [patches, head_dim / 2]
at::Tensor rope_angles(const at::Tensor& rows, const at::Tensor& columns, int64_t head_dim, double theta, at::ScalarType math) {
  const int64_t axis = head_dim / 2;
  std::vector<double> frequencies;
  for (int64_t j = 0; j < (axis + 1) / 2; ++j)
    frequencies.push_back(std::pow(theta, -2.0 * static_cast<double>(j) / static_cast<double>(axis)));
  const at::Tensor f = at::tensor(frequencies, at::kDouble).to(math);
  return at::cat({rows.to(math).unsqueeze(1) * f, columns.to(math).unsqueeze(1) * f}, 1);
}

// Split-half rotation: x [patches, heads, head_dim], cos and sin [patches, head_dim / 2].
at::Tensor rotate_halves(const at::Tensor& x, const at::Tensor& cos, const at::Tensor& sin) {
  const at::Tensor z = kernels::to_math(x), c = cos.unsqueeze(1), s = sin.unsqueeze(1);
  const int64_t half = x.size(2) / 2;
  const at::Tensor a = z.narrow(2, 0, half), b = z.narrow(2, half, half);
  return at::cat({a * c - b * s, b * c + a * s}, 2).to(x.scalar_type());
}

// A rank's heads of all patches of its group, and back. The rows lie by rank of the patches, then head, then patch.
at::Tensor join_patches(const at::Tensor& rows, int64_t heads, const at::Tensor& parts) {  // -> [heads, patches, width]
  std::vector<at::Tensor> joined;
  int64_t first = 0;
  for (int64_t i = 0; i < parts.size(0); ++i) {
    const int64_t patches = parts.const_data_ptr<int64_t>()[i];
    joined.push_back(rows.narrow(0, first, heads * patches).view({heads, patches, rows.size(1)}));
    first += heads * patches;
  }
  return at::cat(joined, 1);
}
at::Tensor part_patches(const at::Tensor& x, const at::Tensor& parts) {  // [heads, patches, width] -> rows
  std::vector<at::Tensor> rows;
  int64_t first = 0;
  for (int64_t i = 0; i < parts.size(0); ++i) {
    const int64_t patches = parts.const_data_ptr<int64_t>()[i];
    rows.push_back(x.narrow(1, first, patches).flatten(0, 1));
    first += patches;
  }
  return at::cat(rows, 0);
}

// Attention inside each image; neighbours with the same number of patches go together. qkv [heads, patches, 3 d] -> [heads,
// patches, d].
at::Tensor attend_images(const at::Tensor& qkv, const at::Tensor& image_patches) {
  const int64_t images = image_patches.size(0), width = qkv.size(2) / 3;
  if (qkv.numel() == 0) return qkv.narrow(2, 0, width);
  const int64_t* count = image_patches.const_data_ptr<int64_t>();
  std::vector<at::Tensor> outputs;
  int64_t first = 0;
  for (int64_t image = 0; image < images;) {
    int64_t last = image;
    while (last < images && count[last] == count[image]) ++last;
    const int64_t rows = (last - image) * count[image];
    const auto cut = [&](int64_t which) {
      return qkv.narrow(1, first, rows).narrow(2, which * width, width).unflatten(1, {last - image, count[image]});
    };
    outputs.push_back(at::scaled_dot_product_attention(cut(0), cut(1), cut(2)).flatten(1, 2));
    first += rows;
    image = last;
  }
  return at::cat(outputs, 1);
}

struct Tower {
  ModelBuilder& builder;
  const VisionConfig& vision = *builder.config.vision;
  engine::ProgramBuilder& program = builder.program;
  int64_t width = vision.hidden_size, heads = vision.num_attention_heads;
  ValueId cos{}, sin{};

  ParameterId bias(const std::string& name, int64_t size) { return builder.leaf(name, {size}, Initialiser::fill(0.0)); }
  ParameterId norm(const std::string& name) {
    return builder.master_leaf(name, {width}, Initialiser::fill(1.0), UpdateHint::gain());
  }

  // Queries and keys by head, values as a whole.
  UpdateHint qkv_blocks() const {
    std::vector<int64_t> rows(2 * heads, width / heads);
    rows.push_back(width);
    return UpdateHint::blocks("head", std::move(rows));
  }

  ValueId add_patch_embed() {
    const int64_t head_dim = width / heads;
    cos = program.choice("vision.rope.cos", {"patches", head_dim / 2});
    sin = program.choice("vision.rope.sin", {"patches", head_dim / 2});
    const ModelInputs& in = builder.inputs;
    const ValueId rows = in.patch_rows, columns = in.patch_columns;
    const ValueId patches = program.exchange("patches", ExchangeKind::kAllToAll, "stage", in.patches, "patches",
                                             in.patch_send_rows, in.patch_receive_rows);
    program.segment("vision.rope", {rows, columns}, {cos, sin}, {},
                    [=, cos = cos, sin = sin, theta = vision.rope_theta](SegmentRun& run) {
                      const at::Tensor angles = rope_angles(run.read(rows), run.read(columns), head_dim, theta, run.math_type());
                      run.make(cos, angles.cos());
                      run.make(sin, angles.sin());
                    });
    const ParameterId weight =
        builder.weight("vision.patch_embed.proj.weight", {width, 3 * vision.patch_size * vision.patch_size});
    const ParameterId offset = bias("vision.patch_embed.proj.bias", width);
    program.close_unit("vision.patch_embed");
    const ValueId out = program.value("vision.patch_embed", {"patches", width});
    program.segment("vision.patch_embed", {patches}, {out}, {weight, offset}, [=](SegmentRun& run) {
      run.make(out, engine::linear(run.read(patches), run.weight(weight)) + run.parameter(offset));
    });
    return out;
  }

  // Queries, keys and values of the own patches: [heads * patches, 3 head_dim].
  ValueId add_queries(const std::string& name, ValueId x, ParameterId gain, ParameterId wqkv, ParameterId bqkv) {
    const ValueId qkv = program.value(name + ".qkv", {"patch_heads", 3 * width / heads});
    program.segment(
        name + ".qkv", {x, cos, sin}, {qkv}, {gain, wqkv, bqkv}, [=, heads = heads, cos = cos, sin = sin](SegmentRun& run) {
          const at::Tensor& input = run.read(x);
          const at::Tensor all = (engine::linear(vision_norm(input, run.parameter(gain)), run.weight(wqkv)) + run.parameter(bqkv))
                                     .view({input.size(0), 3, heads, input.size(1) / heads});
          const at::Tensor q = rotate_halves(all.select(1, 0), run.read(cos), run.read(sin)),
                           k = rotate_halves(all.select(1, 1), run.read(cos), run.read(sin));
          const auto by_head = [](const at::Tensor& t) { return t.transpose(0, 1); };
          run.make(qkv, at::cat({by_head(q), by_head(k), by_head(all.select(1, 2))}, 2).flatten(0, 1));
        });
    return qkv;
  }

  // Ulysses: the ranks of a group have some patches each; for attention they have some heads of all patches each.
  // [heads * patches, 3 head_dim] -> [heads * patches, head_dim].
  ValueId add_attention(const std::string& name, ValueId qkv) {
    const ModelInputs& in = builder.inputs;
    const int64_t own_heads = builder.layout().part(heads, "vision");
    const ValueId all = program.exchange(name + ".to_heads", ExchangeKind::kAllToAll, "vision", qkv, "head_patches",
                                         in.head_send_rows, in.head_receive_rows);
    const ValueId mixed = program.value(name + ".mixed", {"head_patches", width / heads});
    program.segment(name + ".attend", {all, in.image_patches, in.patch_parts}, {mixed}, {},
                    [=, image_patches = in.image_patches, parts = in.patch_parts](SegmentRun& run) {
                      const at::Tensor joined = join_patches(run.read(all), own_heads, run.read(parts));
                      run.make(mixed, part_patches(attend_images(joined, run.read(image_patches)), run.read(parts)));
                    });
    return program.exchange(name + ".to_patches", ExchangeKind::kAllToAll, "vision", mixed, "patch_heads", in.head_receive_rows,
                            in.head_send_rows);
  }

  ValueId add_block(int64_t block, ValueId x) {
    const std::string name = "vision.blocks." + std::to_string(block);
    program.begin_region(name);
    const ParameterId norm1 = norm(name + ".norm1.weight"), norm2 = norm(name + ".norm2.weight");
    const ParameterId wqkv = builder.weight(name + ".attn.wqkv.weight", {3 * width, width}, {}, qkv_blocks()),
                      bqkv = bias(name + ".attn.wqkv.bias", 3 * width);
    const ParameterId wo = builder.weight(name + ".attn.wo.weight", {width, width}), bo = bias(name + ".attn.wo.bias", width);
    const ParameterId w1 = builder.weight(name + ".mlp.w1.weight", {2 * vision.intermediate_size, width});
    const ParameterId w2 = builder.weight(name + ".mlp.w2.weight", {width, vision.intermediate_size});
    program.close_unit(name);
    const ValueId out = program.value(name, {"patches", width});
    const ValueId mixed = add_attention(name, add_queries(name, x, norm1, wqkv, bqkv));
    const ValueId attended = program.value(name + ".attended", {"patches", width});
    program.segment(name + ".out", {x, mixed}, {attended}, {wo, bo}, [=, heads = heads](SegmentRun& run) {
      const at::Tensor& input = run.read(x);
      const at::Tensor rows =
          run.read(mixed).view({heads, input.size(0), input.size(1) / heads}).transpose(0, 1).reshape(input.sizes());
      run.make(attended, input + engine::linear(rows, run.weight(wo)) + run.parameter(bo));
    });
    program.segment(name + ".mlp", {attended}, {out}, {norm2, w1, w2}, [=](SegmentRun& run) {
      const at::Tensor& input = run.read(attended);
      const std::vector<at::Tensor> parts =
          engine::linear(vision_norm(input, run.parameter(norm2)), run.weight(w1)).chunk(2, 1);  // gate, up
      run.make(out, input + engine::linear(at::silu(parts[0]) * parts[1], run.weight(w2)));
    });
    program.end_region();
    return out;
  }

  // Final norm, 3x3 unshuffle, aligner: [aligned, hidden].
  ValueId add_aligner(ValueId x) {
    const int64_t hidden = builder.text().hidden_size, area = vision.downsample_ratio * vision.downsample_ratio;
    const ParameterId gain = norm("vision.norm.weight");
    program.close_unit("vision.norm");
    const ParameterId w1 = builder.weight("aligner.w1.weight", {hidden, width * area}), b1 = bias("aligner.w1.bias", hidden);
    const ParameterId w2 = builder.weight("aligner.w2.weight", {hidden, hidden}), b2 = bias("aligner.w2.bias", hidden);
    program.close_unit("aligner");
    const ValueId unshuffle = builder.inputs.unshuffle;
    const ValueId features = program.value("vision.features", {"patches", width}),
                  out = program.value("vision.aligned", {"aligned", hidden});
    program.segment("vision.norm", {x}, {features}, {gain},
                    [=](SegmentRun& run) { run.make(features, vision_norm(run.read(x), run.parameter(gain))); });
    const ValueId neighbours = launch_halo(builder, "vision.neighbours", "vision", features, builder.inputs.neighbours);
    program.wait(neighbours);
    program.segment(
        "vision.aligner", {features, neighbours, unshuffle}, {out}, {w1, b1, w2, b2}, [=, width = width](SegmentRun& run) {
          const at::Tensor patches = at::cat({run.read(features), run.read(neighbours)});
          const at::Tensor rows = kernels::gather_rows(patches, run.read(unshuffle).reshape({-1}));  // zeros outside the grid
          const at::Tensor blocks =
              rows.view({-1, area, width}).transpose(1, 2).reshape({-1, width * area});  // channel-major, then 3x3
          run.observe("vision.unshuffled", "aligned", [&] { return blocks; });
          const at::Tensor hidden_rows = at::gelu(engine::linear(blocks, run.weight(w1)) + run.parameter(b1));
          run.make(out, engine::linear(hidden_rows, run.weight(w2)) + run.parameter(b2));
        });
    return out;
  }

  // START, the rows each ended by NEW_LINE, END.
  ValueId add_spans(ValueId aligned) {
    const int64_t hidden = builder.text().hidden_size;
    const Initialiser start = Initialiser::normal(builder.std());
    const ParameterId begin = builder.leaf("image_start", {hidden}, start), line = builder.leaf("image_newline", {hidden}, start);
    const ParameterId end = builder.leaf("image_end", {hidden}, start);
    program.close_unit("image_delimiters");
    const ValueId source = builder.inputs.span_source, out = program.value("span_embeddings", {"span_tokens", hidden});
    program.segment("image_spans", {aligned, source}, {out}, {begin, line, end}, [=](SegmentRun& run) {
      const at::Tensor delimiters = at::stack({run.parameter(begin), run.parameter(line), run.parameter(end)});
      run.make(out, kernels::gather_rows(at::cat({delimiters, run.read(aligned)}), run.read(source)));
    });
    return out;
  }
};

}  // namespace

ValueId add_vision(ModelBuilder& builder) {
  builder.partial = true;  // NOTE [Pictures over ranks]
  Tower tower{builder};
  ValueId x = tower.add_patch_embed();
  for (int64_t block = 0; block < tower.vision.num_hidden_layers; ++block) x = tower.add_block(block, x);
  return tower.add_spans(tower.add_aligner(x));
}

}  // namespace hyperparallel::models::deepseek_v41
