// Llama against Hugging Face transformers (tests/models/llama, written by scripts/make_llama_fixture.py), on one rank and on
// layouts.
#include <gmock/gmock.h>

#include <mutex>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint/safetensors.h"
#include "dist/thread_comm.h"
#include "models/families/families.h"

namespace hyperparallel::models {
namespace {

using Tensors = std::map<std::string, at::Tensor>;
using testing::AllOf;
using testing::HasSubstr;

const std::filesystem::path kFolder = HP_SOURCE_DIR "/tests/models/llama/tiny";

std::vector<int64_t> list(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.flatten().contiguous();
  return {flat.const_data_ptr<int64_t>(), flat.const_data_ptr<int64_t>() + flat.numel()};
}

// Documents one behind the other in one row.
data::MicroBatch batch_of(const at::Tensor& ids, const at::Tensor& labels, const std::vector<int64_t>& borders) {
  data::MicroBatch batch;
  batch.rows = 1;
  batch.seq_len = ids.numel();
  batch.input_ids = list(ids);
  batch.labels = list(labels);
  batch.cu_seqlens = borders;
  batch.token_types.assign(batch.input_ids.size(), -1);
  batch.padding.assign(batch.input_ids.size(), 0);
  for (size_t d = 0; d + 1 < borders.size(); ++d) {
    for (int64_t position = 0; position < borders[d + 1] - borders[d]; ++position) batch.position_ids.push_back(position);
  }
  batch.supervised_tokens = std::ranges::count_if(batch.labels, [](int64_t label) { return label >= 0; });
  return batch;
}

struct Result {
  double loss = 0;  // sum over scored tokens
  Tensors gradients, shown;
};

// How a rank runs.
struct RankRun {
  ProgramOptions options;
  at::ScalarType compute = at::kFloat;
  engine::ScheduleOptions schedule = {};
  dist::Groups groups = dist::one_rank_groups();
};

// Loss and gradients of the rank's batches; its owned rows of the gradients go into `into`, tensors of the whole shape.
double run_rank(const Architecture& architecture, const RankRun& run, const Tensors& weights,
                const std::vector<data::MicroBatch>& batches, double coefficient, Result& into, std::mutex& mutex) {
  const auto model = architecture.build(run.options, nullptr);
  engine::ParameterStore parameters(model->program().parameters, run.compute == at::kDouble ? at::kDouble : at::kFloat,
                                    run.compute, run.options.layout);
  for (const engine::ParameterSpec& spec : parameters.specs()) {
    const engine::ParameterId id = parameters.find(spec.name);
    parameters.master(id).copy_(engine::narrow_to(weights.at(spec.name), parameters.placement(id).owned));
  }
  parameters.masters_changed();
  engine::Executor executor(model->program(), parameters, run.groups);
  executor.watch([&](const std::string& name, const std::string&, const at::Tensor& tensor) {
    const std::lock_guard lock(mutex);
    into.shown[name] = tensor.detach().clone();
  });
  std::vector<engine::ValueMap> inputs;
  for (const data::MicroBatch& batch : batches) inputs.push_back(model->inputs(batch, run.compute));
  engine::ScheduleOptions options = run.schedule;
  options.micro_batches = static_cast<int>(batches.size());
  for (const std::string& axis : dist::Mesh::axes()) options.axis_sizes[axis] = run.options.layout.size(axis);
  executor.run(engine::build_schedule(model->program(), options), inputs,
               std::vector<std::vector<double>>(batches.size(), {coefficient}));
  const std::lock_guard lock(mutex);
  double loss = 0;
  for (const auto& losses : executor.losses()) loss += losses[0];
  for (const engine::ParameterSpec& spec : parameters.specs()) {
    const engine::ParameterId id = parameters.find(spec.name);
    at::Tensor& whole = into.gradients.try_emplace(spec.name, at::full(spec.shape, NAN, at::kDouble)).first->second;
    engine::narrow_to(whole, parameters.placement(id).owned).copy_(parameters.gradient(id));
  }
  return loss;
}

class Llama : public testing::Test {
 protected:
  Llama()
      : architecture(read_architecture((kFolder / "config.json").string())),
        weights(checkpoint::read_all(kFolder / "model.safetensors")),
        truth(checkpoint::read_all(kFolder / "case.safetensors")),
        ids(truth.at("ids")),
        labels(truth.at("labels")),
        scored(labels.ge(0).sum().item<int64_t>()) {}

  Result run_alone(const RankRun& how, const std::vector<data::MicroBatch>& batches) const {
    Result result;
    std::mutex mutex;
    result.loss = run_rank(*architecture, how, weights, batches, 1.0 / static_cast<double>(scored), result, mutex);
    return result;
  }
  data::MicroBatch whole_batch() const { return batch_of(ids, labels, {0, 23, 46, 69}); }

  void expect_gradients(const Tensors& found, double tolerance, const std::string& what = "") const {
    for (const auto& [name, weight] : weights) {
      const at::Tensor wanted = truth.at(name).to(at::kDouble);
      EXPECT_LE((found.at(name) - wanted).abs().max().item<double>(), tolerance * wanted.abs().max().item<double>())
          << name << " " << what;
    }
  }

  ArchitecturePtr architecture;
  Tensors weights, truth;
  at::Tensor ids, labels;
  int64_t scored;
};

TEST_F(Llama, LogitsLossAndGradientsAreThoseOfTransformers) {
  for (const auto& [type, tolerance] : {std::pair(at::kFloat, 2e-5), std::pair(at::kDouble, 2e-6)}) {
    const Result result = run_alone({.options = {}, .compute = type}, {whole_batch()});
    const at::Tensor wanted = truth.at("logits").flatten(0, 1).to(at::kDouble);
    EXPECT_LE((result.shown.at("logits") - wanted).abs().max().item<double>(), tolerance * wanted.abs().max().item<double>());
    const double loss = truth.at("loss").item<double>();
    EXPECT_NEAR(result.loss / static_cast<double>(scored), loss, tolerance * loss);
    expect_gradients(result.gradients, tolerance, at::toString(type));
  }
}

TEST_F(Llama, InBfloat16IsNear) {
  const Result result = run_alone({.options = {}, .compute = at::kBFloat16}, {whole_batch()});
  const double loss = truth.at("loss").item<double>();
  EXPECT_NEAR(result.loss / static_cast<double>(scored), loss, 0.01 * loss);
  expect_gradients(result.gradients, 0.1);
}

TEST_F(Llama, PackedDocumentsDoNotSeeEachOther) {
  const at::Tensor flat = ids.flatten(), targets = labels.flatten();
  const std::vector<int64_t> borders = {0, 5, 6, 30, 69};
  RankRun run;
  run.options.attention_chunk = 7;
  const Result packed = run_alone(run, {batch_of(flat, targets, borders)});
  std::vector<data::MicroBatch> apart;
  for (size_t d = 0; d + 1 < borders.size(); ++d) {
    const int64_t begin = borders[d], end = borders[d + 1];
    apart.push_back(batch_of(flat.slice(0, begin, end), targets.slice(0, begin, end), {0, end - begin}));
  }
  const Result separate = run_alone({}, apart);
  EXPECT_NEAR(packed.loss, separate.loss, 1e-5 * separate.loss);
  for (const auto& [name, gradient] : separate.gradients)
    EXPECT_LE((packed.gradients.at(name) - gradient).abs().max().item<double>(), 1e-5 * gradient.abs().max().item<double>())
        << name;
}

TEST_F(Llama, EveryRecomputeModeGivesTheSameBits) {
  const Result plain = run_alone({}, {whole_batch()});
  for (const auto mode : {engine::RecomputePolicy::Mode::kFull, engine::RecomputePolicy::Mode::kSelective}) {
    RankRun run;
    run.schedule.recompute = {mode, 1, {"layers.*.mid"}};
    const Result again = run_alone(run, {whole_batch()});
    EXPECT_EQ(again.loss, plain.loss);
    for (const auto& [name, gradient] : plain.gradients) EXPECT_TRUE(gradient.equal(again.gradients.at(name))) << name;
  }
}

TEST_F(Llama, TiedEmbeddingGetsTheGradientOfBothUses) {
  const std::string text = R"({"model_type": "llama", "vocab_size": 41, "hidden_size": 12, "intermediate_size": 17, "head_dim": 6,
      "num_hidden_layers": 2, "num_attention_heads": 6, "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "rope_theta": 1000.0)";
  const auto parse = [&](const std::string& json) {
    Problems problems;
    const auto result =
        parse_architecture(yaml::parse_yaml(json, "config.json", problems), problems, yaml::MapReader::Unknown::kError);
    problems.throw_if_any();
    return result;
  };
  weights["lm_head.weight"] = weights.at("model.embed_tokens.weight");
  architecture = parse(text + "}");
  const Result apart = run_alone({}, {whole_batch()});
  weights.erase("lm_head.weight");
  architecture = parse(text + R"(, "tie_word_embeddings": true})");
  const Result tied = run_alone({}, {whole_batch()});
  EXPECT_FALSE(tied.gradients.contains("lm_head.weight"));
  const at::Tensor sum = apart.gradients.at("model.embed_tokens.weight") + apart.gradients.at("lm_head.weight");
  EXPECT_LE((tied.gradients.at("model.embed_tokens.weight") - sum).abs().max().item<double>(), 1e-6);
  EXPECT_EQ(tied.loss, apart.loss);
}

// ---- Layouts ----

struct Degrees {
  std::string name;
  dist::MeshDegrees mesh;
  int ranks;
  bool sequence_parallel = false, balanced = false;
};

class LlamaLayouts : public Llama, public testing::WithParamInterface<Degrees> {};

TEST_P(LlamaLayouts, GiveTheGradientsOfTransformers) {
  const Degrees& degrees = GetParam();
  for (const bool recompute : {false, true}) {
    Result result;
    std::mutex mutex;
    dist::run_ranks(degrees.ranks, {}, [&](dist::World& world) {
      RankRun run;
      run.options.attention_chunk = 5;
      engine::Layout& layout = run.options.layout;
      layout.mesh = dist::Mesh(degrees.ranks, degrees.mesh);
      layout.rank = world.rank();
      layout.sequence_parallel = degrees.sequence_parallel;
      layout.balanced = degrees.balanced;
      run.groups = dist::make_groups(world, layout.mesh);
      run.schedule.release_after_forward = run.schedule.reduce_every_micro_batch = true;
      if (recompute) run.schedule.recompute.mode = engine::RecomputePolicy::Mode::kFull;
      // Data-parallel ranks take rows in turn; with two of them the second has an empty batch at last.
      std::vector<data::MicroBatch> batches;
      const int dp = layout.size("dp");
      for (int row = layout.coordinate("dp"); row < 4; row += dp) {
        const at::Tensor none = at::empty({0}, at::kLong);
        batches.push_back(row < 3 ? batch_of(ids[row], labels[row], {0, 9, 23}) : batch_of(none, none, {0}));
      }
      const double loss = run_rank(*architecture, run, weights, batches, 1.0 / static_cast<double>(scored), result, mutex);
      const double sum = run.groups.at("fsdp")->all_reduce(at::full({1}, loss, at::kDouble), "loss").wait().item<double>();
      const std::lock_guard lock(mutex);
      result.loss = sum;
    });
    std::vector<data::MicroBatch> rows;
    for (int row = 0; row < 3; ++row) rows.push_back(batch_of(ids[row], labels[row], {0, 9, 23}));
    const Result alone = run_alone({.options = {}, .compute = at::kDouble}, rows);
    EXPECT_NEAR(result.loss, alone.loss, 1e-5 * alone.loss);
    for (const auto& [name, wanted] : alone.gradients) {
      EXPECT_LE((result.gradients.at(name) - wanted).abs().max().item<double>(), 2e-5 * wanted.abs().max().item<double>())
          << name << (recompute ? ", recomputed" : "");
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Dense, LlamaLayouts,
                         testing::Values(Degrees{"Dp2", {}, 2},
                                         Degrees{"Dp4Replicated", {.fsdp_replicate = 4, .fsdp_shard = 1}, 4},
                                         Degrees{"Hsdp", {.fsdp_replicate = 2, .fsdp_shard = 2}, 4}, Degrees{"Tp2", {.tp = 2}, 2},
                                         Degrees{"Tp2Sp", {.tp = 2}, 2, true}, Degrees{"Cp2", {.cp = 2}, 2},
                                         Degrees{"Cp3Balanced", {.cp = 3}, 3, false, true},
                                         Degrees{"Cp4Tp2", {.cp = 4, .tp = 2}, 8},
                                         Degrees{"Dp2Cp2Tp2SpBalanced", {.cp = 2, .tp = 2}, 8, true, true}),
                         [](const auto& info) { return info.param.name; });

TEST_F(Llama, RefusesDegreesThatDoNotFit) {
  ProgramOptions options;
  options.layout.mesh = dist::Mesh(4, {.tp = 4});
  try {
    architecture->build(options, nullptr);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("parallel.tp 4 does not divide num_attention_heads 6; accepted: 1, 2"),
                                    HasSubstr("parallel.tp 4 does not divide num_key_value_heads 2; accepted: 1, 2")));
  }
  options.layout.mesh = dist::Mesh(2, {.ep = 2});
  try {
    architecture->build(options, nullptr);
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_THAT(error.what(), HasSubstr("parallel.ep 2: model_type llama has no experts; accepted: 1"));
  }
}

TEST_F(Llama, RefusesByNameWhatItCannotDo) {
  for (const auto ability : {Ability::kGeneration, Ability::kGoldenCases, Ability::kCrop})
    EXPECT_FALSE(architecture->can(ability));
  try {
    require(*architecture, Ability::kGeneration, "`eval`");
    FAIL();
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(), "model_type llama: `eval` needs cached generation, which this family does not have yet");
  }
}

// ---- config.json ----

std::string problems_of(const std::string& text, const ParseOptions& options = {}) {
  Problems problems;
  const yaml::Node node = yaml::parse_yaml(text, "config.json", problems);
  parse_architecture(node, problems, yaml::MapReader::Unknown::kError, options);
  std::string all;
  for (const std::string& error : problems.errors()) all += error + "\n";
  return all;
}

TEST(LlamaConfig, SaysAllMistakesAtOnceWithTheirLines) {
  EXPECT_THAT(problems_of(R"({"model_type": "llama",
"vocab_size": 0,
"hiden_size": 12,
"intermediate_size": 17, "num_hidden_layers": 2, "num_attention_heads": 6,
"attention_bias": true,
"mlp_bias": true,
"rope_scaling": {"rope_type": "llama3", "factor": 8.0}
})"),
              AllOf(HasSubstr("config.json:2: vocab_size"), HasSubstr("hidden_size: is required"),
                    HasSubstr("config.json:3: unknown key hiden_size"), HasSubstr("hidden_size"),
                    HasSubstr("config.json:5: attention_bias: true is not supported, expected false"),
                    HasSubstr("config.json:6: mlp_bias: true is not supported"),
                    HasSubstr("config.json:7: rope_scaling: rope_type llama3 is not supported, expected default")));
}

TEST(LlamaConfig, ChecksRulesBetweenKeys) {
  const std::string start = R"({"model_type": "llama", "vocab_size": 9, "intermediate_size": 17, "num_hidden_layers": 2, )";
  EXPECT_THAT(problems_of(start + R"("hidden_size": 12, "num_attention_heads": 6, "num_key_value_heads": 4})"),
              HasSubstr("num_key_value_heads: 4 does not divide num_attention_heads 6"));
  EXPECT_THAT(problems_of(start + R"("hidden_size": 13, "num_attention_heads": 6})"),
              HasSubstr("num_attention_heads: 6 does not divide hidden_size 13; give head_dim"));
  EXPECT_THAT(problems_of(start + R"("hidden_size": 12, "num_attention_heads": 4})"), HasSubstr("head_dim: 3 is odd"));
  ParseOptions options;
  options.switches.candidates = false;
  EXPECT_THAT(problems_of(start + R"("hidden_size": 12, "num_attention_heads": 6})", options),
              HasSubstr("mean nothing to model_type llama"));
  EXPECT_EQ(problems_of(start + R"("hidden_size": 12, "num_attention_heads": 6})"), "");
}

TEST(LlamaConfig, IsWrittenAsItWasRead) {
  const auto architecture = read_architecture((kFolder / "config.json").string());
  const std::string text = architecture->config_json().dump();
  Problems problems;
  const auto again = parse_architecture(yaml::parse_yaml(text, "again", problems), problems, yaml::MapReader::Unknown::kError);
  problems.throw_if_any();
  EXPECT_EQ(again->config_json().dump(), text);
  EXPECT_THAT(text, AllOf(HasSubstr("\"rope_theta\":1000.0"), HasSubstr("\"eos_token_id\":2"), HasSubstr("\"head_dim\":6")));
}

TEST(Families, AnUnknownModelTypeIsRefusedWithTheKnownOnes) {
  EXPECT_THAT(problems_of(R"({"model_type": "gpt2"})"),
              HasSubstr("config.json:1: model_type: no family has gpt2; accepted: deepseek_v41, deepseek_v41_text, llama"));
}

}  // namespace
}  // namespace hyperparallel::models
