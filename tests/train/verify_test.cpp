#include "train/verify.h"

#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "checkpoint/safetensors.h"
#include "support/scratch.h"
#include "support/tensors.h"
#include "train/case_model.h"

namespace hyperparallel::train {
namespace {

using namespace hyperparallel::test;
using Mode = engine::RecomputePolicy::Mode;
namespace fs = std::filesystem;

fs::path case_folder(const std::string& name) {
  return fs::path(HP_SOURCE_DIR) / "tests/golden/model" / name;
}

std::string failures_of(const VerifyReport& report) {
  std::string text;
  for (const VerifyRow& row : report.rows) {
    if (!row.pass) text += fmt::format("{} {}: {} > {}\n", row.name, row.shape, row.absolute, row.limit);
  }
  for (const std::string& name : report.not_compared) text += name + " was not compared\n";
  return text;
}

class GoldenCase : public ::testing::TestWithParam<std::string> {
 protected:
  void expect_pass(const VerifyOptions& options) const {
    const VerifyReport report = verify_case(case_folder(GetParam()), options);
    EXPECT_TRUE(report.pass() && report.not_compared.empty()) << failures_of(report);
  }
  bool is_bf16() const { return GetParam().starts_with("bf16"); }
};

TEST_P(GoldenCase, Holds) {
  expect_pass({});
}
TEST_P(GoldenCase, HoldsInDouble) {
  if (is_bf16()) GTEST_SKIP() << "a BF16 case has no double values";
  VerifyOptions options;
  options.float64 = true;
  expect_pass(options);
}
TEST_P(GoldenCase, HoldsInTinyChunksWithFullRecompute) {
  VerifyOptions options;
  options.config.recompute.mode = RecomputeMode::kFull;
  options.config.kernels.attention_chunk = 7, options.config.kernels.index_chunk = 1000;
  options.config.kernels.cross_entropy_chunk = 5;
  expect_pass(options);
}

INSTANTIATE_TEST_SUITE_P(Model, GoldenCase,
                         ::testing::Values("swa-only", "csa2-small", "quant-blocks", "csa2-engram", "packed", "bf16", "bf16-swa",
                                           "vision-tiny", "vlm-tiny"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// One case, run as often as a test likes.
struct Case {
  TensorMap tensors, made;
  CaseModel run;
  at::ScalarType type;
  models::deepseek_v41::ModelBatch batch;

  explicit Case(const std::string& name, at::ScalarType compute = at::kFloat)
      : tensors(checkpoint::read_all(case_folder(name) / "case.safetensors")),
        run(load_case_model(case_folder(name), compute, {})),
        type(compute),
        batch(batch_of_case(tensors, "", run.model->config, compute)) {
    run.executor->watch(
        [this](const std::string& value, const std::string&, const at::Tensor& tensor) { made[value] = tensor.clone(); });
  }

  const at::Tensor& gradient(const std::string& name) const { return run.parameters->gradient(run.parameters->find(name)); }

  struct Result {
    double loss;
    std::map<std::string, at::Tensor> gradients, counters;
  };
  Result step(const engine::RecomputePolicy& policy = {}) {
    run.parameters->clear_gradients();
    run.executor->clear_counters();
    engine::ScheduleOptions options;
    options.recompute = policy;
    run.executor->run(build_schedule(run.model->program, options), {prepare_inputs(*run.model, batch, type)}, {{1.0 / 64}});
    EXPECT_EQ(run.executor->ledger().live_bytes(), 0);
    Result result{run.executor->losses()[0][0], {}, run.executor->counters()};
    for (const engine::ParameterSpec& spec : run.parameters->specs()) {
      if (gradient(spec.name).defined()) result.gradients[spec.name] = gradient(spec.name).clone();
    }
    return result;
  }
};

void expect_same(const Case::Result& a, const Case::Result& b) {
  EXPECT_EQ(a.loss, b.loss);
  for (const auto& [ours, theirs] : {std::pair(a.gradients, b.gradients), std::pair(a.counters, b.counters)}) {
    ASSERT_EQ(ours.size(), theirs.size());
    for (const auto& [name, tensor] : ours) EXPECT_TRUE(same_bits(tensor, theirs.at(name))) << name;
  }
}

class CaseBits : public ::testing::TestWithParam<std::string> {};

TEST_P(CaseBits, RecomputeInAnyMixAndASecondRunGiveTheSameBits) {
  Case c(GetParam());
  const Case::Result none = c.step();
  ASSERT_FALSE(none.counters.empty());
  expect_same(c.step(), none);
  expect_same(c.step({Mode::kFull, 1, {}}), none);
  expect_same(c.step({Mode::kFull, 2, {}}), none);
  expect_same(c.step({Mode::kSelective, 1, {"*.q", "*.sent", "*.mid"}}), none);
  expect_same(c.step({Mode::kSelective, 3, {"*.attn_out", "*.hc_ffn.*"}}), none);
}
TEST_P(CaseBits, ThreadCountChangesNoChoiceAndNothingBeyondRounding) {
  Case c(GetParam());
  const Case::Result one = with_threads(1, [&] { return c.step(); }), two = with_threads(2, [&] { return c.step(); });
  EXPECT_NEAR(one.loss, two.loss, 2e-6 * one.loss);
  for (const auto& [name, counts] : one.counters) EXPECT_SAME_BITS(counts, two.counters.at(name)) << name;
  int different = 0;
  for (const auto& [name, gradient] : one.gradients) {
    EXPECT_CLOSE(two.gradients.at(name), gradient, 1e-3) << name;
    different += !same_bits(gradient, two.gradients.at(name));
  }
  RecordProperty("gradients_with_other_bits", different);
  std::cout << GetParam() << ": " << different << " of " << one.gradients.size()
            << " gradients have other bits with 2 threads than with 1; loss " << (one.loss == two.loss ? "equal" : "differs")
            << '\n';
}
INSTANTIATE_TEST_SUITE_P(Model, CaseBits, ::testing::Values("csa2-engram", "packed", "vlm-tiny"),
                         [](const auto& info) { return info.param.substr(0, info.param.find('-')); });

TEST(CaseGradients, ParametersThatNeverGetOneStayWithout) {
  for (const std::string name : {"csa2-engram", "vlm-tiny"}) {
    Case c(name);
    c.step();
    int checked = 0;
    const auto notes = nlohmann::json::parse(std::ifstream(case_folder(name) / "notes.json"));
    for (const std::string& parameter : notes.at("parameters_without_gradient").get<std::vector<std::string>>()) {
      if (parameter.ends_with("embed.scale")) continue;
      const at::Tensor& gradient = c.gradient(parameter);
      EXPECT_TRUE(!gradient.defined() || gradient.eq(0).all().item<bool>()) << parameter;
      ++checked;
    }
    EXPECT_GT(checked, 10);
  }
}

TEST(CaseRouter, LoadsCountEveryChoiceByModalityAndPaddingNowhere) {
  const TensorMap losses = checkpoint::read_all(fs::path(HP_SOURCE_DIR) / "tests/golden/losses/balance-model/case.safetensors");
  const at::Tensor& expected = losses.at("loads");  // [layers, 2, experts]
  Case c("csa2-engram");
  Case::Result result = c.step({Mode::kFull, 1, {}});
  for (int64_t layer = 0; layer < expected.size(0); ++layer) {
    EXPECT_TRUE(at::equal(result.counters.at(fmt::format("layers.{}.loads", layer)), expected[layer])) << layer;
  }
  c.batch.padding = c.batch.padding.clone();
  c.batch.padding.slice(0, 50, 61).fill_(true);
  const int64_t k = c.run.model->config.text.num_experts_per_tok;
  EXPECT_EQ(c.step().counters.at("layers.0.loads").sum().item<int64_t>(), (c.batch.ids.size(0) - 11) * k);
}

TEST(CaseRouter, IdleExpertsGetGradientsOfZeros) {
  Case c("swa-only");
  const int64_t k = c.run.model->config.text.num_experts_per_tok;
  for (const engine::ParameterSpec& spec : c.run.parameters->specs()) {
    if (spec.name.ends_with("gate.bias")) c.run.parameters->master(c.run.parameters->find(spec.name)).narrow(0, 0, k).fill_(100);
  }
  c.run.parameters->masters_changed();
  const Case::Result none = c.step();
  expect_same(c.step({Mode::kFull, 1, {}}), none);
  const at::Tensor gradient = none.gradients.at("model.layers.1.ffn.experts.w1.weight");
  EXPECT_GT(gradient.narrow(0, 0, k).abs().max().item<double>(), 0);
  EXPECT_EQ(gradient.slice(0, k).abs().max().item<double>(), 0);
}

// A batch cut down to its first `tokens`, one document, no pictures.
void cut(Case& c, int64_t tokens) {
  auto& batch = c.batch;
  for (at::Tensor* part : {&batch.ids, &batch.targets, &batch.image_mask, &batch.padding, &batch.engram_rows}) {
    if (part->defined()) *part = part->narrow(0, 0, tokens).contiguous();
  }
  batch.image_mask = at::zeros_like(batch.image_mask);
  batch.cu_seqlens = tokens == 0 ? integers({0}) : integers({0, tokens});
  if (!batch.patches.defined()) return;
  batch.patches = batch.patches.narrow(0, 0, 0), batch.grids = batch.grids.narrow(0, 0, 0),
  batch.image_starts = batch.image_starts.narrow(0, 0, 0);
}

TEST(CaseSizes, OneTokenNoTokenAndNoPictureAreFine) {
  for (const std::string name : {"csa2-engram", "vlm-tiny"}) {
    for (int64_t tokens : {45, 3, 1, 0}) {
      Case c(name);
      cut(c, tokens);
      const Case::Result none = c.step();
      expect_same(c.step({Mode::kFull, 2, {}}), none);
      EXPECT_TRUE(std::isfinite(none.loss)) << name << tokens;
      EXPECT_EQ(none.counters.at("layers.0.loads").sum().item<int64_t>(), tokens * c.run.model->config.text.num_experts_per_tok);
      EXPECT_TRUE(none.gradients.contains("lm_head.weight")) << "missing, not zero";
      if (name != "vlm-tiny") continue;
      EXPECT_EQ(none.gradients.at("vision.blocks.0.attn.wqkv.weight").abs().max().item<double>(), 0);
    }
  }
}

TEST(CasePacked, OneDocumentDoesNotFeelTheOther) {
  for (at::ScalarType type : {at::kFloat, at::kDouble}) {
    Case c("packed", type);
    c.step();
    const TensorMap before = c.made;
    const int64_t border = 37, tokens = c.batch.ids.size(0);
    for (int64_t position : {0, 20, 36}) {
      at::Tensor ids = c.tensors.at("input_ids").clone().flatten();
      ids[position] = (ids[position].item<int64_t>() + 17) % 90 + 3;
      c.batch.ids = ids;
      c.batch.engram_rows = engram_lookup_of_case(c.tensors, c.run.model->config, c.batch).rows;
      c.step();
      const auto part = [&](const TensorMap& values, bool second) {
        return second ? values.at("logits").slice(0, border, tokens) : values.at("logits").slice(0, position, border);
      };
      EXPECT_CLOSE(part(c.made, true), part(before, true), type == at::kFloat ? 1e-5 : 1e-13) << position;
      EXPECT_GT(relative_error(part(c.made, false), part(before, false)), 1e-3);  // the changed document does feel it
    }
  }
}

TEST(CasePacked, GradientsOfOneDocumentStayWithinIt) {
  Case c("packed", at::kDouble);
  const at::Tensor targets = c.batch.targets;
  c.batch.targets = targets.clone();
  c.batch.targets.slice(0, 0, 37).fill_(-100);  // only the second document is scored
  const Case::Result second = c.step();
  c.batch.ids = c.batch.ids.clone();
  c.batch.ids.slice(0, 0, 37).copy_((c.tensors.at("input_ids").flatten().slice(0, 0, 37) + 5) % 90 + 3);
  c.batch.engram_rows = engram_lookup_of_case(c.tensors, c.run.model->config, c.batch).rows;
  const Case::Result changed = c.step();
  EXPECT_NEAR(changed.loss, second.loss, 1e-11);
  for (const auto& [name, gradient] : second.gradients) EXPECT_CLOSE(changed.gradients.at(name), gradient, 1e-9) << name;
}

TEST(CaseImages, IdsUnderASpanDoNotMatterAndItsTableRowGetsNoGradient) {
  Case c("vlm-tiny");
  const Case::Result before = c.step();
  const int64_t image_token = 127;
  EXPECT_EQ(before.gradients.at("model.embed.weight")[image_token].abs().max().item<double>(), 0);
  EXPECT_GT(before.gradients.at("model.embed.weight").abs().max().item<double>(), 0);
  c.batch.ids = at::where(c.batch.image_mask, at::remainder(at::arange(c.batch.ids.size(0)) * 31, 120), c.batch.ids);
  ASSERT_FALSE(at::equal(c.batch.ids, c.tensors.at("input_ids").flatten()));
  c.batch.engram_rows = engram_lookup_of_case(c.tensors, c.run.model->config, c.batch).rows;
  expect_same(c.step(), before);
}

TEST(CaseImages, ARowDoesNotFeelThePicturesOfAnother) {
  Case c("vlm-tiny");
  c.step();
  const TensorMap before = c.made;
  c.batch.patches = c.batch.patches * -0.7 + 0.1;
  c.step();
  EXPECT_CLOSE(c.made.at("logits").slice(0, 45), before.at("logits").slice(0, 45), 1e-5);
  EXPECT_GT(relative_error(c.made.at("logits").slice(0, 0, 45), before.at("logits").slice(0, 0, 45)), 1e-3);
}

// A copy of a case whose tensors `change` edits.
void copy_case(const std::string& name, const fs::path& to, const std::string& file,
               const std::function<void(TensorMap&)>& change) {
  for (const auto& entry : fs::directory_iterator(case_folder(name)))
    fs::copy(entry.path(), to / entry.path().filename(), fs::copy_options::overwrite_existing);
  TensorMap tensors = checkpoint::read_all(to / file);
  change(tensors);
  checkpoint::write_safetensors(to / file, std::vector<checkpoint::NamedTensor>(tensors.begin(), tensors.end()));
}

TEST(VerifyReportTest, AWeightThatDiffersFailsTheCase) {
  const Scratch folder;
  copy_case("swa-only", folder.path(), "weights.safetensors",
            [](TensorMap& w) { w.at("model.layers.1.attn.wo_b.weight")[3][2] += 0.01; });
  const VerifyReport report = verify_case(folder.path(), {});
  EXPECT_FALSE(report.pass());
  EXPECT_FALSE(report.worst().pass);
}

TEST(VerifyReportTest, AnOutputThatDiffersFailsAloneWhateverItsType) {
  for (const std::string changed : {"layer.0.attn_out", "layer.1.expert_ids", "grad.lm_head.weight", "loss"}) {
    const Scratch folder;
    copy_case("swa-only", folder.path(), "case.safetensors", [&](TensorMap& t) {
      at::Tensor first = t.at(changed).view(-1)[0];
      first.add_(at::isFloatingType(first.scalar_type()) ? at::Scalar(0.01) : at::Scalar(1));
    });
    const VerifyReport report = verify_case(folder.path(), {});
    EXPECT_EQ(report.worst().name, changed);
    EXPECT_EQ(std::count_if(report.rows.begin(), report.rows.end(), [](const VerifyRow& row) { return !row.pass; }), 1)
        << changed;
  }
  const Scratch folder;
  copy_case("swa-only", folder.path(), "case.safetensors", [](TensorMap& t) { t.at("logits").view(-1)[5] = NAN; });
  EXPECT_EQ(verify_case(folder.path(), {}).worst().name, "logits");
}

TEST(VerifyErrors, AMissingFileOrTensorIsNamed) {
  const auto error_of = [](const fs::path& folder) {
    try {
      verify_case(folder, {});
    } catch (const Error& error) {
      EXPECT_TRUE(error.code() == ExitCode::kCheckpoint || error.code() == ExitCode::kUsage) << error.what();
      return std::string(error.what());
    }
    return std::string("no error");
  };
  for (const std::string file : {"config.json", "weights.safetensors", "case.safetensors"}) {
    const Scratch folder;
    copy_case("swa-only", folder.path(), "case.safetensors", [](TensorMap&) {});
    fs::remove(folder / file);
    EXPECT_NE(error_of(folder.path()).find(file), std::string::npos) << error_of(folder.path());
  }
  EXPECT_NE(error_of("/nowhere").find("/nowhere"), std::string::npos);
  const std::vector<std::tuple<std::string, std::string, std::vector<std::string>>> lacking = {
      {"csa2-engram", "case.safetensors", {"token_map"}},
      {"vision-tiny", "case.safetensors", {"grids"}},
      {"vision-tiny", "case.safetensors", {"cotangent"}},
      {"vision-tiny", "case.safetensors", {"patches"}},
      {"vlm-tiny", "case.safetensors", {"token_types", "image_starts"}},
      {"bf16-swa", "case.safetensors", {"logits"}},
      {"swa-only", "case.safetensors", {"input_ids"}},
      {"swa-only", "weights.safetensors", {"lm_head.weight"}}};
  for (const auto& [name, file, without] : lacking) {
    const Scratch folder;
    copy_case(name, folder.path(), file, [&, &without = without](TensorMap& t) {
      for (const std::string& tensor : without) ASSERT_EQ(t.erase(tensor), 1u) << tensor;
    });
    const std::string error = error_of(folder.path());
    EXPECT_NE(error.find(file), std::string::npos) << name << " without " << without[0] << ": " << error;
    EXPECT_NE(error.find(without[0]), std::string::npos) << name << ": " << error;
  }
}

std::string data_error_of(const fs::path& folder) {
  try {
    verify_case(folder, {});
  } catch (const DataError& error) {
    return error.what();
  }
  return "no DataError";
}

TEST(VerifyErrors, NumbersOfTheNotesThatLackOrHaveAnotherFormAreNamed) {
  const std::vector<std::tuple<std::string, nlohmann::json, std::string>> wrong = {
      {"notes.json", {{"limits", {{"loss_abs", 1}}}}, "limits.logit_median_abs is missing"},
      {"notes.json", {{"limits", {{"loss_abs", "x"}}}}, "limits.loss_abs is \"x\"; accepted: a number"},
      {"notes.json", {{"limits", 3}}, "limits is 3; accepted: an object"},
      {"notes.json",
       {{"limits", {{"loss_abs", 1}, {"logit_median_abs", 1}, {"logit_fraction_within", {0.9}}}}},
       "limits.logit_fraction_within is [0.9]; accepted: a list of two numbers"},
      {"notes.json",
       {{"limits", {{"loss_abs", 1}, {"logit_median_abs", 1}, {"logit_fraction_within", {90, 1}}}}},
       "limits.logit_fraction_within is [90,1]; accepted: a fraction"},
      {"notes.json", {1}, "is no JSON object"},
      {"errors.json", {{"loss_fp32_arith", 1e-6}}, "loss_fp32_arith is 1e-06; accepted: a list of two numbers"}};
  for (const auto& [file, content, message] : wrong) {
    const Scratch folder;
    copy_case("bf16-swa", folder.path(), "case.safetensors", [](TensorMap&) {});
    std::ofstream(folder / file) << content;
    EXPECT_EQ(data_error_of(folder.path()).find((folder / file).string() + ": "), 0u) << data_error_of(folder.path());
    EXPECT_NE(data_error_of(folder.path()).find(message), std::string::npos) << data_error_of(folder.path());
  }
}

TEST(VerifyErrors, TensorsOfImagesAndDocumentsThatTheCaseLacksAreNamed) {
  for (const auto& [name, tensor] : {std::pair("vision-tiny", "image.99.aligned"), std::pair("vlm-tiny", "image.99.span"),
                                     std::pair("packed", "doc99.logits")}) {
    const Scratch folder;
    copy_case(name, folder.path(), "case.safetensors", [&, &tensor = tensor](TensorMap& t) { t[tensor] = at::zeros({1, 2}); });
    EXPECT_NE(data_error_of(folder.path()).find("case.safetensors: the tensor " + std::string(tensor)), std::string::npos)
        << data_error_of(folder.path());
  }
}

TEST(VerifyErrors, ATensorOfAnotherNameOrShapeIsAFindingAndNoError) {
  const Scratch folder;
  copy_case("swa-only", folder.path(), "case.safetensors", [](TensorMap& t) {
    t["image.0.span"] = at::zeros({1});
    t["span_embeddings"] = at::zeros({1});
    t.at("grad.lm_head.weight") = at::zeros({3});
  });
  const VerifyReport report = verify_case(folder.path(), {});
  EXPECT_EQ(report.not_compared, (std::vector<std::string>{"image.0.span", "span_embeddings"}));
  EXPECT_EQ(report.worst().name, "grad.lm_head.weight");
}

}  // namespace
}  // namespace hyperparallel::train
