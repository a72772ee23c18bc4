#include "kernels/mhc/op.h"

#include <fmt/format.h>

#include <cmath>

#include "models/deepseek_v41/builder.h"

namespace hyperparallel::models::deepseek_v41 {

using engine::Initialiser;
using engine::ParameterId;
using engine::SegmentRun;
using engine::ValueId;

namespace {

// Start of hc_*_base: every stream enters with weight 1/n, an output is added once, streams stay nearly themselves (near
// identity).
Initialiser base_start(int64_t n, const Initialisation& rule) {
  std::vector<double> values;
  for (int64_t k = 0; k < n; ++k) values.push_back(n > 1 ? std::log(1.0 / static_cast<double>(n - 1)) : 20.0);
  for (int64_t k = 0; k < n; ++k) values.push_back(rule.hc_post_base);
  for (int64_t k = 0; k < n * n; ++k) values.push_back(k / n == k % n ? rule.hc_comb_diagonal : 0.0);
  return Initialiser::from(values);
}

}  // namespace

ValueId add_first_mix(ModelBuilder& builder, const std::string& name, ValueId streams) {
  const int64_t n = builder.text().hc_mult;
  const ValueId pre = builder.program.choice(name, {builder.stream_rows(), n});
  builder.program.segment("first_mix." + name, {streams}, {pre}, {}, [=](SegmentRun& run) {
    const at::Tensor one_hot = at::zeros({run.read(streams).size(0), n}, run.math_type());
    one_hot.select(1, 0).fill_(1);
    run.make(pre, one_hot);
  });
  return pre;
}

namespace {

kernels::Implementation mhc_kernel(ModelBuilder& builder) {
  return builder.choose("mhc", fmt::format("{} streams of {}", builder.text().hc_mult, builder.text().hidden_size),
                        builder.options.kernels.mhc, kernels::mhc_candidates(builder.options.compute, /*on_cpu=*/true));
}

// What a site declares.
struct SiteParameters {
  ParameterId norm, fn, base, scale;
  double eps, hc_eps;
  int64_t iterations;
  kernels::Implementation how;

  std::vector<ParameterId> ids() const { return {norm, fn, base, scale}; }
  kernels::MixParameters read(SegmentRun& run) const {
    return {run.parameter(fn), run.parameter(scale), run.parameter(base), run.parameter(norm), eps, hc_eps, iterations};
  }
};

SiteParameters declare_site(ModelBuilder& builder, const Block& block, const std::string& kind) {
  const TextConfig& text = builder.text();
  const int64_t n = text.hc_mult, d = text.hidden_size;
  const std::string prefix = block.parameters;
  builder.partial = builder.layout().sequence_parallel;
  SiteParameters site;
  site.norm = builder.gain(prefix + kind + "_norm.weight", d);
  site.fn = builder.master_leaf(prefix + "hc_" + kind + "_fn", {(2 + n) * n, n * d}, Initialiser::normal(builder.std()),
                                engine::UpdateHint::matrix());
  site.base =
      builder.master_leaf(prefix + "hc_" + kind + "_base", {(2 + n) * n}, base_start(n, builder.config.switches.initialisation));
  site.scale = builder.master_leaf(prefix + "hc_" + kind + "_scale", {3},
                                   Initialiser::fill(builder.config.switches.initialisation.hc_scale));
  site.eps = text.rms_norm_eps, site.hc_eps = text.hc_eps, site.iterations = text.hc_sinkhorn_iters;
  site.how = mhc_kernel(builder);
  return site;
}

MixSite declare_values(ModelBuilder& builder, const std::string& name) {
  const std::string rows = builder.stream_rows();
  const int64_t n = builder.text().hc_mult, d = builder.text().hidden_size;
  return {builder.program.value(name + ".pre", {rows, n}), builder.program.value(name + ".post", {rows, n}),
          builder.program.value(name + ".comb", {rows, n, n}), builder.program.value(name + ".x", {rows, d})};
}

void make_site(SegmentRun& run, const MixSite& site, const kernels::MixIn& made) {
  run.make(site.pre, made.coefficients.pre);
  run.make(site.post, made.coefficients.post);
  run.make(site.comb, made.coefficients.comb);
  run.make(site.x, made.x);
}

ValueId declare_streams(ModelBuilder& builder, const std::string& name) {
  return builder.program.value(name, {builder.stream_rows(), builder.text().hc_mult, builder.text().hidden_size});
}

}  // namespace

// NOTE [Single pass]: the coefficients of a site are computed from the streams that enter it, but its `pre` collapses the streams
// only at the NEXT site; so one pass over the streams serves both, and what a site writes back as well (add_mix_boundary).
MixSite add_mix_in(ModelBuilder& builder, const Block& block, const std::string& kind, ValueId streams, ValueId pre) {
  const SiteParameters parameters = declare_site(builder, block, kind);
  const std::string name = block.name + ".hc_" + kind;
  const MixSite site = declare_values(builder, name);
  builder.program.segment(
      name + ".in", {streams, pre}, {site.pre, site.post, site.comb, site.x}, parameters.ids(), [=](SegmentRun& run) {
        make_site(run, site, kernels::mix_in(run.read(streams), run.read(pre), parameters.read(run), parameters.how));
      });
  return site;
}

BlockBorder leave_block(ModelBuilder& builder, const Block& block, const MixSite& ffn, ValueId ffn_out, ValueId mid, bool writes) {
  const std::string result = block.name + ".streams";
  if (!writes) return {mid, ffn.pre, BlockBorder::Unwritten{result, ffn, ffn_out}};
  const ValueId out = declare_streams(builder, result);
  builder.program.segment(
      block.name + ".hc_ffn.out", {ffn_out, mid, ffn.post, ffn.comb}, {out}, {},
      [=, how = mhc_kernel(builder)](SegmentRun& run) {
        run.make(out, kernels::expand(run.read(ffn_out), run.read(mid), run.read(ffn.post), run.read(ffn.comb), how));
      });
  return {out, ffn.pre};
}

MixBoundary enter_block(ModelBuilder& builder, const Block& block, const BlockBorder& border) {
  if (!border.unwritten) return {border.streams, add_mix_in(builder, block, "attn", border.streams, border.pre)};
  const auto& [result, site, y] = *border.unwritten;
  return add_mix_boundary(builder, block, result, site, y, border.streams, "attn");
}

MixBoundary add_mix_boundary(ModelBuilder& builder, const Block& block, const std::string& result, const MixSite& from, ValueId y,
                             ValueId streams, const std::string& kind) {
  const SiteParameters parameters = declare_site(builder, block, kind);
  const std::string name = block.name + ".hc_" + kind;
  const ValueId out = declare_streams(builder, result);
  const MixSite site = declare_values(builder, name);
  builder.program.segment(name + ".boundary", {y, streams, from.post, from.comb, from.pre},
                          {out, site.pre, site.post, site.comb, site.x}, parameters.ids(), [=](SegmentRun& run) {
                            const kernels::Boundary made =
                                kernels::boundary(run.read(y), run.read(streams), run.read(from.post), run.read(from.comb),
                                                  run.read(from.pre), parameters.read(run), parameters.how);
                            run.make(out, made.streams);
                            make_site(run, site, made.in);
                          });
  return {out, site};
}

}  // namespace hyperparallel::models::deepseek_v41
