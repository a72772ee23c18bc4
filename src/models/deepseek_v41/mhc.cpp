#include "kernels/mhc/op.h"

#include <cmath>

#include "kernels/norm/op.h"
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

// NOTE [Single pass]: the coefficients of a site are computed from the streams that enter it, but its `pre` collapses the streams
// only at the NEXT site; so one pass over the streams serves both.
MixSite add_mix_in(ModelBuilder& builder, const Block& block, const std::string& kind, ValueId streams, ValueId pre) {
  const TextConfig& text = builder.text();
  const int64_t n = text.hc_mult, d = text.hidden_size;
  const std::string prefix = block.parameters, name = block.name + ".hc_" + kind, rows = builder.stream_rows();
  builder.partial = builder.layout().sequence_parallel;
  const ParameterId norm = builder.gain(prefix + kind + "_norm.weight", d);
  const ParameterId fn = builder.master_leaf(prefix + "hc_" + kind + "_fn", {(2 + n) * n, n * d},
                                             Initialiser::normal(builder.std()), engine::UpdateHint::matrix());
  const ParameterId base =
      builder.master_leaf(prefix + "hc_" + kind + "_base", {(2 + n) * n}, base_start(n, builder.config.switches.initialisation));
  const ParameterId scale = builder.master_leaf(prefix + "hc_" + kind + "_scale", {3},
                                                Initialiser::fill(builder.config.switches.initialisation.hc_scale));
  const MixSite site{builder.program.value(name + ".pre", {rows, n}), builder.program.value(name + ".post", {rows, n}),
                     builder.program.value(name + ".comb", {rows, n, n}), builder.program.value(name + ".x", {rows, d})};
  builder.program.segment(
      name + ".in", {streams, pre}, {site.pre, site.post, site.comb, site.x}, {norm, fn, base, scale},
      [=, eps = text.rms_norm_eps, hc_eps = text.hc_eps, iterations = text.hc_sinkhorn_iters](SegmentRun& run) {
        const at::Tensor& x = run.read(streams);
        const kernels::MixCoefficients mix =
            kernels::mix_coefficients(x, run.parameter(fn), run.parameter(scale), run.parameter(base), eps, hc_eps, iterations);
        run.make(site.pre, mix.pre);
        run.make(site.post, mix.post);
        run.make(site.comb, mix.comb);
        run.make(site.x, kernels::rms_norm(kernels::collapse(x, run.read(pre)), run.parameter(norm), eps));
      });
  return site;
}

ValueId add_mix_out(ModelBuilder& builder, const Block& block, const std::string& kind, const std::string& result,
                    const MixSite& site, ValueId y, ValueId streams) {
  const ValueId out = builder.program.value(block.name + "." + result,
                                            {builder.stream_rows(), builder.text().hc_mult, builder.text().hidden_size});
  builder.program.segment(
      block.name + ".hc_" + kind + ".out", {y, streams, site.post, site.comb}, {out}, {}, [=](SegmentRun& run) {
        run.make(out, kernels::expand(run.read(y), run.read(streams), run.read(site.post), run.read(site.comb)));
      });
  return out;
}

}  // namespace hyperparallel::models::deepseek_v41
