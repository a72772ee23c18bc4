#include "kernels/mhc/mega.h"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "base/error.h"
#include "kernels/mhc/site.h"
#include "kernels/storage.h"
#include "kernels/types.h"
#include "kernels/with_types.h"
#include "runtime/plan_cache.h"
#include "runtime/run.h"

namespace hyperparallel::kernels::mhc {

// NOTE [Parts]: gradients of parameters are sums over tokens. Tokens are cut into parts, each with sums of its own, which are
// added up in order; how many depends on sizes alone, so bits do not depend on the number of threads.
int64_t gradient_parts(int64_t tokens, int64_t numbers) {
  constexpr int64_t kMostNumbers = 8 << 20, kMostParts = 16, kLeastTokens = 64;
  return std::clamp<int64_t>(std::min(kMostNumbers / std::max<int64_t>(1, numbers), tokens / kLeastTokens), 1, kMostParts);
}

int64_t gradient_numbers(int64_t n, int64_t d) {
  const SiteShape shape{n, d, 1, 0, 0};
  return shape.mix().outputs() * shape.stride() + shape.padded();
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

constexpr int64_t kTaskTokens = 64;  // of a forward task
constexpr int64_t kSumTasks = 8;

constexpr int kDerive = 0, kSum = 1;  // stages of backward

std::shared_ptr<const runtime::Plan> backward_plan(int64_t parts) {
  static runtime::PlanCache<int64_t> plans;
  return plans.get(parts, [&](runtime::Plan& plan) {
    plan.add_stage("mhc backward", runtime::TaskKind::kVector);
    plan.add_stage("mhc parameters", runtime::TaskKind::kVector);
    const int done = plan.add_counter("parts of the mhc backward");
    for (int64_t i = 0; i < parts; ++i) plan.add_task(kDerive, static_cast<int>(i), {}, {done});
    for (int i = 0; i < kSumTasks; ++i) plan.add_task(kSum, i, {done, static_cast<int32_t>(parts)}, {});
  });
}

// What one call reads, contiguous; undefined where the site has no such half.
struct Given {
  at::Tensor y, streams, post, comb;        // of `expand`; `streams` are the old ones then
  at::Tensor given, fn, scale, base, gain;  // of `mix`; fn [outputs, stride] and gain padded, in the math type
  SiteShape shape;

  bool expands() const { return y.defined(); }
  bool mixes() const { return given.defined(); }
  int64_t tokens() const { return streams.size(0); }
};

// [.., d] with zeros up to a multiple of 16.
at::Tensor padded(const at::Tensor& x, int64_t d, int64_t to) {
  const at::Tensor rows = x.reshape({-1, d});
  return d == to ? rows.contiguous() : at::constant_pad_nd(rows, {0, to - d});
}

Given prepared(const variable_list& in, const MixParameters& settings) {
  Given g;
  const auto contiguous = [](const at::Tensor& x) { return x.defined() ? x.detach().contiguous() : at::Tensor(); };
  g.y = contiguous(in[0]), g.streams = contiguous(in[1]), g.post = contiguous(in[2]), g.comb = contiguous(in[3]);
  g.given = contiguous(in[4]), g.scale = contiguous(in[6]), g.base = contiguous(in[7]);
  g.shape = {g.streams.size(1), g.streams.size(2), settings.iterations, settings.rms_eps, settings.hc_eps};
  if (!g.mixes()) return g;
  const int64_t d = g.shape.d, wide = g.shape.padded();
  const int64_t outputs = g.shape.mix().outputs(), width = g.shape.padded_width();
  g.fn = at::constant_pad_nd(padded(in[5].detach(), d, wide).view({outputs, width}), {0, g.shape.stride() - width});
  g.gain = padded(to_math(in[8].detach().to(g.streams.scalar_type())), d, wide);
  return g;
}

// The new streams and what `mix` makes of them; projected and r are kept for backward.
struct Made {
  at::Tensor streams, pre, post, comb, x, projected, r;
};

template <class S, class T>
struct Site {
  const Given& in;
  const Made& made;
  int64_t n = in.shape.n, d = in.shape.d, outputs = in.shape.mix().outputs(), step = in.shape.tokens();

  ExpandInput<S, T> expand_input(int64_t t) const {
    return {data<S>(in.y) + t * d, data<S>(in.streams) + t * n * d, data<T>(in.post) + t * n, data<T>(in.comb) + t * n * n};
  }
  MixWeights<T> parameters() const { return {data<T>(in.fn), data<T>(in.scale), data<T>(in.base), data<T>(in.gain)}; }
  MixRows<T> rows(int64_t t) const {
    return {data<T>(in.given) + t * n,      writable<T>(made.projected) + t * outputs,
            writable<T>(made.r) + t,        writable<T>(made.pre) + t * n,
            writable<T>(made.post) + t * n, writable<T>(made.comb) + t * n * n};
  }

  void forward(SiteTile<S, T>& tile, int64_t t, int64_t count) const {
    if (in.expands()) {
      tile.expand(count, expand_input(t), writable<S>(made.streams) + t * n * d);
    } else {
      tile.read(count, data<S>(in.streams) + t * n * d);
    }
    if (in.mixes()) tile.mix(count, parameters(), rows(t), writable<S>(made.x) + t * d);
  }
  void forward() const {
    runtime::WorkerScratch<SiteTile<S, T>> tiles;
    runtime::run_blocks("mhc", in.tokens(), kTaskTokens, [&](int64_t begin, int64_t end, int worker) {
      SiteTile<S, T>& tile = tiles.of(worker, in.shape);
      for (int64_t t = begin; t < end; t += step) forward(tile, t, std::min(step, end - t));
    });
  }
};

// Gradients of what a site made, then of what it read.
struct Gradients {
  at::Tensor streams, pre, post, comb, x;
  at::Tensor dy, dstreams, dpost, dcomb, dgiven;
  at::Tensor sums, scale_sums;  // [parts, (outputs n + 1) padded], [parts, 3 + outputs] FP64
};

template <class S, class T>
struct SiteBackward {
  const Site<S, T>& site;
  const Gradients& g;
  const Given& in = site.in;
  int64_t n = site.n, d = site.d, outputs = site.outputs, parts = g.sums.size(0), numbers = g.sums.size(1);

  void derive(SiteTile<S, T>& tile, int64_t part, int64_t t, int64_t count) const {
    if (in.expands()) {
      tile.read_gradient(count, data<S>(g.streams) + t * n * d);
    } else {
      tile.clear_gradient();
    }
    if (in.mixes()) {
      tile.read(count, data<S>(site.made.streams) + t * n * d);
      const MixGradients<T> gradients{data<T>(g.pre) + t * n, data<T>(g.post) + t * n, data<T>(g.comb) + t * n * n,
                                      writable<T>(g.dgiven) + t * n};
      T* sums = writable<T>(g.sums) + part * numbers;
      tile.mix_backward(count, site.parameters(), site.rows(t), gradients, data<S>(g.x) + t * d,
                        {sums, sums + outputs * in.shape.stride(), writable<double>(g.scale_sums) + part * (3 + outputs)});
    }
    if (in.expands()) {
      tile.expand_backward(count, site.expand_input(t), writable<S>(g.dy) + t * d, writable<S>(g.dstreams) + t * n * d,
                           writable<T>(g.dpost) + t * n, writable<T>(g.dcomb) + t * n * n);
    } else {
      tile.write_gradient(count, writable<S>(g.dstreams) + t * n * d);
    }
  }
  // A share of the sums: all parts into the first, in order.
  void add_up(int64_t share) const {
    T* first = writable<T>(g.sums);
    const int64_t begin = numbers * share / kSumTasks, end = numbers * (share + 1) / kSumTasks;
    for (int64_t part = 1; part < parts; ++part) {
      const T* more = first + part * numbers;
      for (int64_t i = begin; i < end; ++i) first[i] += more[i];
    }
  }
  void run() const {
    runtime::WorkerScratch<SiteTile<S, T>> tiles;
    runtime::run(*backward_plan(parts), [&](int stage, int task, int worker) {
      if (stage == kSum) return add_up(task);
      SiteTile<S, T>& tile = tiles.of(worker, in.shape);
      std::fill_n(writable<T>(g.sums) + task * numbers, numbers, T(0));
      const int64_t end = in.tokens() * (task + 1) / parts;
      for (int64_t t = in.tokens() * task / parts; t < end; t += site.step) derive(tile, task, t, std::min(site.step, end - t));
    });
  }
};

// Inputs: y, streams, post, comb, given, fn, scale, base, gain. Outputs: the new streams where y is there; pre, post, comb and x
// where `given` is.
struct SiteFunction : torch::autograd::Function<SiteFunction> {
  using Maybe = std::optional<at::Tensor>;
  static variable_list forward(AutogradContext* context, const Maybe& y, const at::Tensor& streams, const Maybe& post,
                               const Maybe& comb, const Maybe& given, const Maybe& fn, const Maybe& scale, const Maybe& base,
                               const Maybe& gain, const MixParameters& settings) {
    const auto some = [](const Maybe& x) { return x.value_or(at::Tensor()); };
    const Given in = prepared(
        {some(y), streams, some(post), some(comb), some(given), some(fn), some(scale), some(base), some(gain)}, settings);
    const int64_t tokens = in.tokens(), n = in.shape.n, outputs = in.shape.mix().outputs();
    const auto math = streams.options().dtype(math_type(streams.scalar_type()));
    Made made;
    made.streams = in.streams;
    if (in.expands()) made.streams = at::empty(streams.sizes(), streams.options());
    if (in.mixes()) {
      made.pre = at::empty({tokens, n}, math), made.post = at::empty({tokens, n}, math);
      made.comb = at::empty({tokens, n, n}, math), made.x = at::empty({tokens, in.shape.d}, streams.options());
      made.projected = at::empty({tokens, outputs}, math), made.r = at::empty({tokens}, math);
    }
    with_types(streams.scalar_type(), [&](auto s, auto t) { Site<decltype(s), decltype(t)>{in, made}.forward(); });
    context->save_for_backward({in.y, in.streams, in.post, in.comb, in.given, some(fn), in.scale, in.base, some(gain),
                                made.streams, made.pre, made.post, made.comb, made.projected, made.r});
    context->saved_data["iterations"] = settings.iterations;
    context->saved_data["rms_eps"] = settings.rms_eps;
    context->saved_data["hc_eps"] = settings.hc_eps;
    variable_list out;
    if (in.expands()) out.push_back(made.streams);
    if (in.mixes()) out.insert(out.end(), {made.pre, made.post, made.comb, made.x});
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    MixParameters settings;
    settings.iterations = context->saved_data["iterations"].toInt();
    settings.rms_eps = context->saved_data["rms_eps"].toDouble();
    settings.hc_eps = context->saved_data["hc_eps"].toDouble();
    const Given in = prepared({saved.begin(), saved.begin() + 9}, settings);
    const Made made{saved[9], saved[10], saved[11], saved[12], {}, saved[13], saved[14]};
    const int64_t tokens = in.tokens(), outputs = in.shape.mix().outputs();
    const auto math = in.streams.options().dtype(math_type(in.streams.scalar_type()));
    size_t next = 0;
    const auto gradient = [&] { return gradients[next++].contiguous(); };
    Gradients g;
    if (in.expands()) g.streams = gradient();
    g.dstreams = at::empty(in.streams.sizes(), in.streams.options());
    if (in.expands()) g.dy = at::empty_like(in.y), g.dpost = at::empty_like(in.post), g.dcomb = at::empty_like(in.comb);
    int64_t numbers = 0;
    if (in.mixes()) {
      g.pre = gradient(), g.post = gradient(), g.comb = gradient(), g.x = gradient();
      g.dgiven = at::empty_like(in.given);
      numbers = gradient_numbers(in.shape.n, in.shape.d);
    }
    const int64_t parts = gradient_parts(tokens, numbers);
    g.sums = at::empty({parts, numbers}, math);
    g.scale_sums = at::zeros({parts, 3 + outputs}, math.dtype(at::kDouble));
    with_types(in.streams.scalar_type(), [&](auto s, auto t) {
      using S = decltype(s);
      using T = decltype(t);
      const Site<S, T> site{in, made};
      SiteBackward<S, T>{site, g}.run();
    });
    variable_list all{g.dy, g.dstreams, g.dpost, g.dcomb};
    all.resize(10);
    if (!in.mixes()) return all;
    const int64_t n = in.shape.n, d = in.shape.d, wide = in.shape.padded();
    const int64_t matrix = outputs * in.shape.stride();
    const at::Tensor dfn = g.sums[0].narrow(0, 0, matrix).view({outputs, -1}).narrow(1, 0, n * wide).unflatten(1, {n, wide}),
                     scales = g.scale_sums.sum(0).to(math.dtype());
    all[4] = g.dgiven;
    all[5] = dfn.narrow(2, 0, d).reshape(saved[5].sizes());
    all[6] = scales.narrow(0, 0, 3);
    all[7] = scales.narrow(0, 3, outputs);
    all[8] = g.sums[0].narrow(0, matrix, d).to(saved[8].scalar_type());
    return all;
  }
};

variable_list apply(const SiteFunction::Maybe& y, const at::Tensor& streams, const SiteFunction::Maybe& post,
                    const SiteFunction::Maybe& comb, const SiteFunction::Maybe& given, const SiteFunction::Maybe& fn,
                    const SiteFunction::Maybe& scale, const SiteFunction::Maybe& base, const SiteFunction::Maybe& gain,
                    const MixParameters& settings) {
  return SiteFunction::apply(y, streams, post, comb, given, fn, scale, base, gain, settings);
}

void check(const at::Tensor& streams, const MixParameters& parameters) {
  HP_CHECK(streams.is_cpu() && parameters.fn.scalar_type() == math_type(streams.scalar_type()),
           "mix of {} streams by a {} matrix", at::toString(streams.scalar_type()), at::toString(parameters.fn.scalar_type()));
}

}  // namespace

at::Tensor mega_expand(const at::Tensor& y, const at::Tensor& streams, const at::Tensor& post, const at::Tensor& comb) {
  constexpr std::nullopt_t none = std::nullopt;
  return apply(y, streams, post, comb, none, none, none, none, none, MixParameters())[0];
}

MixIn mega_mix_in(const at::Tensor& streams, const at::Tensor& given, const MixParameters& parameters) {
  check(streams, parameters);
  constexpr std::nullopt_t none = std::nullopt;
  const variable_list out =
      apply(none, streams, none, none, given, parameters.fn, parameters.scale, parameters.base, parameters.gain, parameters);
  return {{out[0], out[1], out[2]}, out[3]};
}

Boundary mega_boundary(const at::Tensor& y, const at::Tensor& streams, const at::Tensor& post, const at::Tensor& comb,
                       const at::Tensor& given, const MixParameters& parameters) {
  check(streams, parameters);
  const variable_list out =
      apply(y, streams, post, comb, given, parameters.fn, parameters.scale, parameters.base, parameters.gain, parameters);
  return {out[0], {{out[1], out[2], out[3]}, out[4]}};
}

}  // namespace hyperparallel::kernels::mhc
