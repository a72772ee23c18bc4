#include "train/bench_mega.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace hyperparallel::train {
namespace {

struct Variant {
  BenchModel model;
  engine::ValueMap inputs = {};
  std::vector<double> seconds = {}, waited = {};  // percent
};

Gain gain_of(const std::vector<double>& off, const std::vector<double>& on) {
  std::vector<double> percent;
  for (size_t i = 0; i < off.size(); ++i) percent.push_back(100 * (off[i] / on[i] - 1));
  return {median_of(percent), *std::ranges::min_element(percent), *std::ranges::max_element(percent)};
}

}  // namespace

BenchMegaResult bench_mega(const models::ArchitecturePtr& architecture, const BenchMegaOptions& options, const Ranks& ranks) {
  using kernels::Implementation;
  models::ProgramOptions program;
  program.layout = ranks.layout;
  program.compute = options.compute;
  models::KernelLimits off = program.kernels;
  off.gate = off.moe = Implementation::kReference, off.mhc = Implementation::kFused;
  models::KernelLimits moe = off, all;
  moe.moe = Implementation::kMega;
  all = moe;
  all.gate = all.mhc = Implementation::kMega;
  std::vector<Variant> variants;
  for (const models::KernelLimits& limits : {off, moe, all}) {
    program.kernels = limits;
    variants.push_back({BenchModel(architecture, program, options.compute, {}, ranks)});
  }
  const data::MicroBatch batch =
      random_batch(architecture->vocab_size(), options.tokens, static_cast<int>(ranks.layout.coordinate("dp")),
                   static_cast<int>(ranks.layout.size("dp")));
  for (Variant& variant : variants) variant.inputs = variant.model.run().inputs(batch);
  for (int i = -1; i < options.repetitions; ++i) {
    for (Variant& variant : variants) {
      const double seconds = variant.model.step_seconds(batch, variant.inputs);
      if (i < 0) continue;
      variant.seconds.push_back(seconds);
      variant.waited.push_back(100 * variant.model.waited_seconds() / seconds);
    }
  }
  const auto [a, b, c] = std::tie(variants[0], variants[1], variants[2]);
  return {at::get_num_threads(),
          static_cast<int>(ranks.layout.mesh.world_size()),
          options.tokens,
          median_of(a.seconds),
          median_of(b.seconds),
          median_of(c.seconds),
          gain_of(a.seconds, b.seconds),
          gain_of(a.seconds, c.seconds),
          median_of(a.waited),
          median_of(b.waited),
          median_of(c.waited)};
}

nlohmann::ordered_json to_json(const BenchMegaResult& result) {
  const auto spread = [](const Gain& gain) { return nlohmann::ordered_json{gain.least, gain.most}; };
  return {{"threads", result.threads},         {"ranks", result.ranks},
          {"tokens", result.tokens},           {"seconds.off", result.off_seconds},
          {"seconds.moe", result.moe_seconds}, {"seconds.all", result.all_seconds},
          {"gain.moe", result.moe.median},     {"gain.moe.spread", spread(result.moe)},
          {"gain.all", result.all.median},     {"gain.all.spread", spread(result.all)},
          {"waited.off", result.off_waited},   {"waited.moe", result.moe_waited},
          {"waited.all", result.all_waited}};
}

}  // namespace hyperparallel::train
