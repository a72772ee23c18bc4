// Vision tower, aligner and image spans: docs/model.md, Vision.
#include <cmath>

#include "kernels/rows/op.h"
#include "kernels/types.h"
#include "models/deepseek_v41/builder.h"

namespace hyperparallel::models::deepseek_v41 {

using engine::Initialiser;
using engine::ParameterId;
using engine::SegmentRun;
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

// Attention inside each image; neighbours with the same number of patches go together. q, k, v [patches, heads, d].
at::Tensor attend_images(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, const at::Tensor& image_patches) {
  const int64_t images = image_patches.size(0);
  const int64_t* count = image_patches.const_data_ptr<int64_t>();
  std::vector<at::Tensor> outputs;
  int64_t first = 0;
  for (int64_t image = 0; image < images;) {
    int64_t last = image;
    while (last < images && count[last] == count[image]) ++last;
    const int64_t rows = (last - image) * count[image];
    const auto cut = [&](const at::Tensor& x) {
      return x.narrow(0, first, rows).unflatten(0, {last - image, count[image]}).transpose(1, 2);
    };
    outputs.push_back(at::scaled_dot_product_attention(cut(q), cut(k), cut(v)).transpose(1, 2).flatten(0, 1));
    first += rows;
    image = last;
  }
  return outputs.empty() ? at::zeros_like(q) * q : at::cat(outputs, 0);
}

struct Tower {
  ModelBuilder& builder;
  const VisionConfig& vision = *builder.config.vision;
  engine::ProgramBuilder& program = builder.program;
  int64_t width = vision.hidden_size, heads = vision.num_attention_heads;
  ValueId cos{}, sin{};

  ParameterId bias(const std::string& name, int64_t size) { return builder.leaf(name, {size}, Initialiser::fill(0.0)); }
  ParameterId norm(const std::string& name) { return builder.master_leaf(name, {width}, Initialiser::fill(1.0)); }

  ValueId add_patch_embed() {
    const int64_t head_dim = width / heads;
    cos = program.choice("vision.rope.cos", {"patches", head_dim / 2});
    sin = program.choice("vision.rope.sin", {"patches", head_dim / 2});
    const ValueId rows = builder.inputs.patch_rows, columns = builder.inputs.patch_columns, patches = builder.inputs.patches;
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

  ValueId add_block(int64_t block, ValueId x) {
    const std::string name = "vision.blocks." + std::to_string(block);
    program.begin_region(name);
    const ParameterId norm1 = norm(name + ".norm1.weight"), norm2 = norm(name + ".norm2.weight");
    const ParameterId wqkv = builder.weight(name + ".attn.wqkv.weight", {3 * width, width}),
                      bqkv = bias(name + ".attn.wqkv.bias", 3 * width);
    const ParameterId wo = builder.weight(name + ".attn.wo.weight", {width, width}), bo = bias(name + ".attn.wo.bias", width);
    const ParameterId w1 = builder.weight(name + ".mlp.w1.weight", {2 * vision.intermediate_size, width});
    const ParameterId w2 = builder.weight(name + ".mlp.w2.weight", {width, vision.intermediate_size});
    program.close_unit(name);
    const ValueId image_patches = builder.inputs.image_patches, cos = this->cos, sin = this->sin;
    const ValueId attended = program.value(name + ".attended", {"patches", width}), out = program.value(name, {"patches", width});
    program.segment(name + ".attn", {x, image_patches, cos, sin}, {attended}, {norm1, wqkv, bqkv, wo, bo},
                    [=, heads = heads](SegmentRun& run) {
                      const at::Tensor& input = run.read(x);
                      const at::Tensor normed = vision_norm(input, run.parameter(norm1));
                      const at::Tensor qkv = (engine::linear(normed, run.weight(wqkv)) + run.parameter(bqkv))
                                                 .view({input.size(0), 3, heads, input.size(1) / heads});
                      const at::Tensor q = rotate_halves(qkv.select(1, 0), run.read(cos), run.read(sin)),
                                       k = rotate_halves(qkv.select(1, 1), run.read(cos), run.read(sin));
                      const at::Tensor mixed =
                          attend_images(q, k, qkv.select(1, 2), run.read(image_patches)).reshape(input.sizes());
                      run.make(attended, input + engine::linear(mixed, run.weight(wo)) + run.parameter(bo));
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
    program.segment("vision.aligner", {features, unshuffle}, {out}, {w1, b1, w2, b2}, [=, width = width](SegmentRun& run) {
      const at::Tensor rows =
          kernels::gather_rows(run.read(features), run.read(unshuffle).reshape({-1}));  // zeros outside the grid
      const at::Tensor blocks =
          rows.view({-1, area, width}).transpose(1, 2).reshape({-1, width * area});  // channel-major, then 3x3
      run.observe("vision.unshuffled", [&] { return blocks; });
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
  builder.partial = true;  // pictures are spread over the ranks of a sample group
  Tower tower{builder};
  ValueId x = tower.add_patch_embed();
  for (int64_t block = 0; block < tower.vision.num_hidden_layers; ++block) x = tower.add_block(block, x);
  return tower.add_spans(tower.add_aligner(x));
}

}  // namespace hyperparallel::models::deepseek_v41
