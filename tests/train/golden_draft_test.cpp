// tests/golden/dspark: the draft layers on given streams, their losses and gradients, on one rank and over ranks.
#include <gmock/gmock.h>

#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>

#include "checkpoint/safetensors.h"
#include "dist/thread_comm.h"
#include "engine/draft_scores.h"
#include "engine/schedule.h"
#include "models/deepseek_v41/adapter.h"
#include "models/deepseek_v41/draft_batch.h"
#include "models/families/families.h"
#include "train/case_model.h"

namespace hyperparallel::train::golden_draft {
namespace {

namespace v41 = models::deepseek_v41;

struct Split {
  std::string name;
  dist::MeshDegrees degrees;
  int ranks;
  bool sequence_parallel, balanced;
};
const std::vector<Split>& splits() {
  static const std::vector<Split> all{{"One", {}, 1, false, false},
                                      {"Tp2", {.tp = 2}, 2, false, false},
                                      {"Cp2", {.cp = 2}, 2, false, false},
                                      {"Cp3BalancedEp3", {.cp = 3, .ep = 3}, 3, false, true},
                                      {"Tp2Cp2Ep4Sp", {.cp = 2, .tp = 2, .ep = 4}, 4, true, false},
                                      {"Tp3Cp2Sp", {.cp = 2, .tp = 3}, 6, true, false}};
  return all;
}

// A fixture: rows of the batch lie one after another, each row or packed document for itself.
struct Case {
  explicit Case(const std::string& name)
      : folder(std::filesystem::path(HP_SOURCE_DIR) / "tests/golden/dspark" / name),
        tensors(checkpoint::read_all(folder / "case.safetensors")),
        weights(checkpoint::read_all(folder / "weights.safetensors")),
        config(v41::config_of(*models::read_architecture((folder / "config.json").string(), {}))) {
    std::ifstream(folder / "errors.json") >> errors;
    config.switches.cache_quantisation = name == "fp8-kv";
    for (const auto& [from, to] : {std::pair("embed.weight", "model.embed.weight"), std::pair("head.weight", "lm_head.weight")}) {
      if (const auto found = weights.find(from); found != weights.end()) weights[to] = found->second, weights.erase(found);
    }
    const at::Tensor ids = tensors.at("input_ids"), labels = tensors.at("labels").flatten(), keep = tensors.at("keep");
    const int64_t rows = ids.size(0), length = ids.size(1);
    std::vector<int64_t> borders{0}, anchors;
    const at::Tensor segment = tensors.contains("segment_ids") ? tensors.at("segment_ids").flatten() : at::Tensor();
    for (int64_t t = 1; t < rows * length; ++t) {
      const bool is_new = t % length == 0 || (segment.defined() && segment[t].item<int64_t>() != segment[t - 1].item<int64_t>());
      if (is_new) borders.push_back(t);
    }
    borders.push_back(rows * length);
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < keep.size(1); ++i) {
        if (keep[row][i].item<bool>()) anchors.push_back(row * length + tensors.at("anchors")[row][i].item<int64_t>());
      }
    }
    batch.ids = ids.flatten();
    batch.cu_seqlens = models::tensor_of(borders);
    batch.targets = at::full({rows * length}, -100, at::kLong);
    for (size_t d = 0; d + 1 < borders.size(); ++d)
      batch.targets.slice(0, borders[d], borders[d + 1] - 1).copy_(labels.slice(0, borders[d] + 1, borders[d + 1]));
    batch.image_mask = batch.padding = at::zeros({rows * length}, at::kBool);
    batch.anchors = models::tensor_of(anchors);
  }
  // The rows of kept anchors, [kept * K, ...].
  at::Tensor of_slots(const std::string& name) const { return of_anchors(name).flatten(0, 1); }
  at::Tensor of_anchors(const std::string& name) const {  // [kept, K, ...]
    const at::Tensor kept = tensors.at("keep").flatten().nonzero().flatten();
    return tensors.at(name).flatten(0, 1).index_select(0, kept);
  }
  void expect(const std::string& name, const at::Tensor& expected, const at::Tensor& found) const {
    ASSERT_EQ(found.numel(), expected.numel()) << name;
    const double e = errors.at(name)[0], m = errors.at(name)[1];
    const double difference =
        (found.to(at::kDouble) - expected.to(at::kDouble).reshape(found.sizes())).abs().max().item<double>();
    const bool in_double = found.scalar_type() == at::kDouble, is_gradient = name.starts_with("grad.");
    EXPECT_LE(difference, in_double ? std::max(1.01 * e, 2e-7 * m) : std::max(10 * e, (is_gradient ? 3e-5 : 1e-5) * m)) << name;
  }

  std::filesystem::path folder;
  TensorMap tensors, weights;
  v41::ModelConfig config;
  nlohmann::json errors;
  v41::ModelBatch batch;
};

models::DraftLoss loss_of(const std::string& variant) {
  models::DraftLoss loss;
  loss.weight = 1;
  if (variant == "hard") loss = {1, 1.0, 0.0, 0.5, true, 0.0, 512};
  return loss;
}

struct Found {
  double loss = 0;
  TensorMap gradients, made;  // the latter of rank 0
  at::Tensor slots;
};

Found run(const Case& fixture, at::ScalarType type, const models::DraftLoss& loss, const Split& split, bool recompute) {
  const double units = v41::draft_units(fixture.config.text, loss, fixture.batch);
  Found found;
  std::mutex mutex;
  dist::run_ranks(split.ranks, {}, [&](dist::World& world) {
    v41::ProgramOptions options;
    options.layout.mesh = dist::Mesh(split.ranks, split.degrees);
    options.layout.rank = world.rank();
    options.layout.sequence_parallel = split.sequence_parallel;
    options.layout.balanced = split.balanced;
    options.losses.draft = loss;
    options.cross_entropy_chunk = 7;
    const v41::ModelProgram model = v41::build_draft_program(fixture.config, options);
    const at::ScalarType master = type == at::kDouble ? at::kDouble : at::kFloat;
    engine::ParameterStore parameters(model.program.parameters, master, type, options.layout);
    load_released_weights(parameters, fixture.weights, "weights");
    engine::Executor executor(model.program, parameters, dist::make_groups(world, options.layout.mesh));
    executor.watch([&](const std::string& name, const std::string&, const at::Tensor& tensor) {
      const std::lock_guard lock(mutex);
      if (world.rank() == 0) found.made[name] = tensor.detach().clone();
    });
    engine::ValueMap inputs = v41::prepare_inputs(model, fixture.batch, type);
    const at::Tensor borders = fixture.batch.cu_seqlens;
    const models::RankTokens tokens({borders.const_data_ptr<int64_t>(), borders.const_data_ptr<int64_t>() + borders.numel()},
                                    options.layout);
    const at::Tensor own = models::tensor_of(tokens.own()),
                     rows = split.sequence_parallel ? models::tensor_of(tokens.shard()) : own;
    const at::Tensor streams = fixture.tensors.at("target_streams").flatten(0, 1).to(type);  // [tokens, layers, n, hidden]
    for (size_t i = 0; i < model.inputs.draft.target_streams.size(); ++i)
      inputs[model.inputs.draft.target_streams[i].index] = streams.select(1, static_cast<int64_t>(i)).index_select(0, rows);
    inputs[model.inputs.draft.final_hidden.index] =
        fixture.tensors.at("final_hidden").flatten(0, 1).to(type).index_select(0, own);
    engine::ScheduleOptions schedule;
    if (recompute) schedule.recompute.mode = engine::RecomputePolicy::Mode::kFull;
    for (const std::string& axis : dist::Mesh::axes()) schedule.axis_sizes[axis] = options.layout.size(axis);
    executor.run(build_schedule(model.program, schedule), {inputs}, {{1 / units}});
    const std::lock_guard lock(mutex);
    if (options.layout.coordinate("tp") == 0) found.loss += executor.losses()[0][0] / units;
    const at::Tensor slots = executor.counters().at("draft.slots");
    found.slots = found.slots.defined() ? found.slots + slots : slots;
    for (const engine::ParameterSpec& spec : parameters.specs()) {
      const at::Tensor& gradient = parameters.gradient(parameters.find(spec.name));
      if (!gradient.defined()) continue;
      at::Tensor& whole = found.gradients.try_emplace(spec.name, at::full(spec.shape, NAN, gradient.options())).first->second;
      engine::narrow_to(whole, parameters.placement(parameters.find(spec.name)).owned).copy_(gradient);
    }
  });
  return found;
}

void expect_values(const Case& fixture, const Found& found, int64_t block) {
  const auto made = [&](const std::string& name) { return found.made.at(name); };
  fixture.expect("main_x", fixture.tensors.at("main_x"), made("draft.main_x"));
  for (int64_t i = 0; i < fixture.config.text.num_nextn_predict_layers; ++i) {
    const std::string stage = "stage." + std::to_string(i) + ".", mtp = "mtp." + std::to_string(i) + ".";
    fixture.expect(stage + "main_kv", fixture.tensors.at(stage + "main_kv"), made(mtp + "main_kv"));
    for (const auto& [theirs, ours] :
         {std::pair("draft_kv", "draft_kv"), std::pair("attn_out", "attn_out"), std::pair("ffn_out", "ffn_out"),
          std::pair("streams", "streams"), std::pair("pre_mix", "hc_ffn.pre")})
      fixture.expect(stage + theirs, fixture.of_slots(stage + theirs), made(mtp + ours));
    const auto [ids, order] = made(mtp + "expert_ids").sort(1);
    EXPECT_TRUE(ids.to(at::kLong).equal(fixture.of_slots(stage + "expert_ids"))) << stage;
  }
  fixture.expect("hidden", fixture.of_slots("hidden"), made("draft.hidden"));
  fixture.expect("confidence", fixture.of_slots("confidence"), made("draft.confidence"));
  const at::Tensor mask = fixture.of_slots("slot_mask").to(at::kLong);
  EXPECT_EQ(found.slots[0].sum().item<int64_t>(), mask.sum().item<int64_t>());
  EXPECT_EQ(found.slots[1].sum().item<int64_t>(), (fixture.of_slots("slot.greedy_hit") * mask).sum().item<int64_t>());
  EXPECT_EQ(found.slots.size(1), block);
  const auto scored = [&](const std::string& name) { return fixture.of_slots(name) * mask; };
  fixture.expect("slot.ce", scored("slot.ce"), made("draft.cross_entropy"));
  fixture.expect("slot.l1", scored("slot.l1"), made("draft.distance"));
  EXPECT_TRUE(made("draft.hit").to(at::kLong).equal(scored("slot.greedy_hit").to(at::kLong)));
}

// The words that the layers would propose, from what they made.
void expect_greedy(const Case& fixture, const Found& found, int64_t block) {
  const std::string last = "mtp." + std::to_string(fixture.config.text.num_nextn_predict_layers - 1) + ".";
  const at::Tensor hidden = found.made.at("draft.hidden").unflatten(0, {-1, block}),
                   normed = found.made.at("draft.normed").unflatten(0, {-1, block});
  const auto weight = [&](const std::string& name) { return fixture.weights.at(name).to(hidden.scalar_type()); };
  const engine::GreedyDraft draft =
      engine::greedy_draft(hidden, normed, fixture.of_anchors("greedy.ids").select(1, 0), weight("lm_head.weight"),
                           weight(last + "markov_head.embed.weight"), weight(last + "markov_head.head.weight"),
                           weight(last + "confidence_head.proj.weight"));
  EXPECT_TRUE(draft.ids.equal(fixture.of_anchors("greedy.ids")));
  fixture.expect("greedy.logits", fixture.of_anchors("greedy.logits"), draft.logits);
  fixture.expect("greedy.confidence", fixture.of_anchors("greedy.confidence"), draft.confidence);
}

using Parameters = std::pair<std::string, Split>;
std::vector<Parameters> cases() {
  std::vector<Parameters> all;
  for (const std::string name : {"plain", "fp8-kv", "packed"}) {
    const int heads = name == "fp8-kv" ? 3 : 4;
    for (const Split& split : splits()) {
      if (heads % split.degrees.tp == 0) all.emplace_back(name, split);
    }
  }
  return all;
}
class GoldenDraft : public testing::TestWithParam<Parameters> {};

TEST_P(GoldenDraft, LayersLossesAndGradientsHold) {
  const auto& [name, split] = GetParam();
  const Case fixture(name);
  for (const std::string variant : {"soft", "hard"}) {
    for (const at::ScalarType type : {at::kFloat, at::kDouble}) {
      for (const bool recompute : {false, true}) {
        SCOPED_TRACE(fmt::format("{} {}{}", variant, at::toString(type), recompute ? " recomputed" : ""));
        const Found found = run(fixture, type, loss_of(variant), split, recompute);
        const double expected = fixture.tensors.at("loss." + variant + ".total").item<double>();
        EXPECT_NEAR(found.loss / expected, 1, 2e-6);
        if (split.ranks == 1) {
          expect_values(fixture, found, fixture.config.text.draft.block_size);
          expect_greedy(fixture, found, fixture.config.text.draft.block_size);
        }
        int64_t compared = 0;
        for (const auto& [parameter, gradient] : found.gradients) {
          engine::ParameterSpec spec;
          spec.name = parameter;
          for (const auto& [released, part] : released_tensors(spec, gradient)) {
            const std::string key = "grad." + variant + "." + released;
            if (!fixture.tensors.contains(key)) {
              EXPECT_EQ(part.abs().max().item<double>(), 0) << released;
              continue;
            }
            fixture.expect(key, fixture.tensors.at(key), part);
            ++compared;
          }
        }
        const auto of_variant = [&](const auto& entry) { return entry.first.starts_with("grad." + variant + "."); };
        EXPECT_EQ(compared, std::ranges::count_if(fixture.tensors, of_variant));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, GoldenDraft, testing::ValuesIn(cases()), [](const auto& info) {
  std::string name = info.param.first + "_" + info.param.second.name;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace hyperparallel::train::golden_draft
