// Generation against tests/golden/generate and against itself: kept prefixes must change nothing.
#include "train/generate.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "checkpoint/safetensors.h"
#include "train/case_model.h"

namespace hyperparallel::train {
namespace {

using models::deepseek_v41::EngramHasher;
using models::deepseek_v41::ModelBatch;
using models::deepseek_v41::ModelProgram;
using models::deepseek_v41::Prefix;
using models::deepseek_v41::ProgramOptions;

const std::filesystem::path kGolden = HP_SOURCE_DIR "/tests/golden";

nlohmann::json read_json(const std::filesystem::path& path) {
  return nlohmann::json::parse(std::ifstream(path));
}

std::vector<int64_t> list(const at::Tensor& tensor) {
  const at::Tensor flat = tensor.flatten().to(at::kLong).contiguous();
  return {flat.const_data_ptr<int64_t>(), flat.const_data_ptr<int64_t>() + flat.numel()};
}

// One case of tests/golden/generate with its model.
struct Case {
  explicit Case(const std::string& name)
      : folder(kGolden / "generate" / name), tensors(checkpoint::read_all(folder / "case.safetensors")) {
    const std::string model = std::filesystem::path(read_json(folder / "notes.json").at("model").get<std::string>()).filename();
    run = load_case_model(kGolden / "model" / model, at::kFloat, {});
    if (!config().text.engram_layer_ids.empty()) {
      const std::vector<int64_t> map = list(tensors.at("token_map"));
      hasher.emplace(config().text, std::vector<int32_t>(map.begin(), map.end()));
    }
  }
  const models::deepseek_v41::ModelConfig& config() const { return run.model->config; }
  const EngramHasher* hashes() const { return hasher ? &*hasher : nullptr; }
  std::vector<int64_t> prompt_ids() const { return list(tensors.at("prompt_ids")); }
  std::vector<int64_t> new_tokens() const { return list(tensors.at("new_tokens")); }

  Prompt prompt() const {
    Prompt prompt;
    prompt.ids = prompt_ids();
    if (auto types = tensors.find("token_types"); types != tensors.end()) {
      for (int64_t type : list(types->second)) {
        if (type == 0) prompt.image_starts.push_back(static_cast<int64_t>(prompt.image.size()));
        prompt.image.push_back(type >= 0);
      }
      prompt.patches = tensors.at("patches").flatten(1);
      prompt.grids = tensors.at("grids");
    }
    return prompt;
  }

  // The forward rule of tests/golden/README.md.
  void expect_logits(const at::Tensor& logits, int64_t step, const std::string& what) const {
    const nlohmann::json error = read_json(folder / "errors.json").at("logits");
    const double limit = std::max(10 * error[0].get<double>(), 1e-5 * error[1].get<double>());
    EXPECT_LE((logits - tensors.at("logits")[step]).abs().max().item<double>(), limit) << what << ", step " << step;
  }

  std::filesystem::path folder;
  TensorMap tensors;
  CaseModel run;
  std::optional<EngramHasher> hasher;
};

// Pieces of documents, one run after another, each behind what the runs before left: logits of the last tokens of the last run.
class Pieces {
 public:
  explicit Pieces(Case& test) : test_(test) {
    ProgramOptions options;
    options.cached = true;
    model_ = std::make_unique<ModelProgram>(build_program(test.config(), options));
    executor_ = std::make_unique<engine::Executor>(model_->program, *test.run.parameters);
  }

  at::Tensor run(const std::vector<Prompt>& pieces) {
    prefix_.sequences.resize(pieces.size());
    windows_.resize(pieces.size(), test_.hasher ? test_.hasher->document_start() : EngramHasher::Window());
    ModelBatch batch;
    std::vector<int64_t> ids, borders{0}, starts;
    std::vector<uint8_t> image;
    std::vector<at::Tensor> patches, grids, rows;
    for (size_t i = 0; i < pieces.size(); ++i) {
      const Prompt& piece = pieces[i];
      std::vector<uint8_t> dead = piece.image;
      dead.resize(piece.ids.size(), 0);
      if (test_.hasher) {
        rows.push_back(
            at::empty({static_cast<int64_t>(piece.ids.size()), test_.hasher->layers(), test_.hasher->columns()}, at::kLong));
        test_.hasher->append(windows_[i], piece.ids, dead,
                             {rows.back().mutable_data_ptr<int64_t>(), static_cast<size_t>(rows.back().numel())});
      }
      for (int64_t start : piece.image_starts) starts.push_back(borders.back() + start);
      if (piece.patches.defined()) patches.push_back(piece.patches), grids.push_back(piece.grids);
      ids.insert(ids.end(), piece.ids.begin(), piece.ids.end());
      image.insert(image.end(), dead.begin(), dead.end());
      borders.push_back(static_cast<int64_t>(ids.size()));
    }
    batch.ids = at::tensor(ids, at::kLong), batch.cu_seqlens = at::tensor(borders, at::kLong);
    batch.image_mask = at::tensor(image, at::kByte).to(at::kBool), batch.padding = at::zeros_like(batch.image_mask);
    if (!rows.empty()) batch.engram_rows = at::cat(rows);
    if (const auto& vision = test_.config().vision) {
      batch.patches = patches.empty() ? at::empty({0, 3 * vision->patch_size * vision->patch_size}) : at::cat(patches);
      batch.grids = grids.empty() ? at::empty({0, 2}, at::kLong) : at::cat(grids);
      batch.image_starts = at::tensor(starts, at::kLong);
    }
    engine::ScheduleOptions forward;
    forward.backward = false;
    executor_->run(build_schedule(model_->program, forward), {prepare_inputs(*model_, batch, at::kFloat, &prefix_)}, {{}});
    prefix_ = advance(*model_, prefix_, batch, executor_->outputs()[0]);
    return executor_->outputs()[0].at(model_->inputs.logits.index);
  }

 private:
  Case& test_;
  std::unique_ptr<ModelProgram> model_;
  std::unique_ptr<engine::Executor> executor_;
  Prefix prefix_;
  std::vector<EngramHasher::Window> windows_;
};

Prompt text(std::vector<int64_t> ids) {
  return {std::move(ids), {}, {}, {}, {}};
}
Prompt first_part(const Prompt& prompt, int64_t length) {
  Prompt part = prompt;
  part.ids.resize(length);
  if (!part.image.empty()) part.image.resize(length);
  return part;
}

class GoldenGenerate : public ::testing::TestWithParam<const char*> {};

TEST_P(GoldenGenerate, RecomputationGivesTheTokensAndLogits) {
  Case test(GetParam());
  Prompt prompt = test.prompt();
  const std::vector<int64_t> expected = test.new_tokens();
  for (size_t step = 0; step < expected.size(); ++step) {
    const at::Tensor logits = Pieces(test).run({prompt})[0];
    test.expect_logits(logits, static_cast<int64_t>(step), "recomputed");
    const int64_t id = choose_token(logits, {}, 0, 0);
    ASSERT_EQ(id, expected[step]) << "step " << step;
    prompt.ids.push_back(id);
    if (!prompt.image.empty()) prompt.image.push_back(0);
  }
}

TEST_P(GoldenGenerate, TheTrainingProgramGivesTheLogitsOfEveryStep) {
  Case test(GetParam());
  TensorMap tensors = test.tensors;
  const int64_t prompt = tensors.at("prompt_ids").numel();
  tensors["input_ids"] = tensors.at("all_ids");
  if (tensors.contains("token_types")) {
    tensors["token_types"] = at::constant_pad_nd(tensors.at("token_types"), {0, tensors.at("all_ids").numel() - prompt}, -1);
  }
  at::Tensor logits;
  test.run.executor->watch([&](const std::string& name, const std::string&, const at::Tensor& tensor) {
    if (name == "logits") logits = tensor;
  });
  engine::ScheduleOptions forward;
  forward.backward = false;
  const ModelBatch batch = batch_of_case(tensors, "", test.config(), at::kFloat);
  test.run.executor->run(build_schedule(test.run.model->program, forward), {prepare_inputs(*test.run.model, batch, at::kFloat)},
                         {{}});
  for (int64_t step = 0; step < 24; ++step) test.expect_logits(logits[prompt - 1 + step], step, "one pass");
}

TEST_P(GoldenGenerate, CachedStepsGiveTheTokensAndLogits) {
  Case test(GetParam());
  GenerateOptions options;
  options.max_new_tokens = 24;
  Generator generator(test.config(), *test.run.parameters, test.hashes(), options);
  generator.add(test.prompt());
  const std::vector<int64_t> expected = test.new_tokens();
  for (size_t step = 0; step < expected.size(); ++step) {
    const std::vector<Generator::Token> tokens = generator.step();
    ASSERT_EQ(tokens.size(), 1u);
    test.expect_logits(generator.logits()[0], static_cast<int64_t>(step), "cached");
    ASSERT_EQ(tokens[0].id, expected[step]) << "step " << step;
    EXPECT_EQ(tokens[0].last, step + 1 == expected.size());
  }
  EXPECT_TRUE(generator.idle());
}

TEST_P(GoldenGenerate, APromptMayComeInTwoPiecesCutAnywhere) {
  Case test(GetParam());
  const Prompt whole = test.prompt();
  const std::vector<int64_t> expected = test.new_tokens();
  for (int64_t cut = 1; cut < static_cast<int64_t>(whole.ids.size()); ++cut) {
    if (!whole.image.empty() && whole.image[cut] != 0 && whole.image[cut - 1] != 0) continue;  // an image is one piece
    Prompt rest = text({whole.ids.begin() + cut, whole.ids.end()}), first = first_part(whole, cut);
    if (!whole.image_starts.empty() && whole.image_starts[0] >= cut) {
      rest = whole;
      rest.ids.erase(rest.ids.begin(), rest.ids.begin() + cut), rest.image.erase(rest.image.begin(), rest.image.begin() + cut);
      rest.image_starts[0] -= cut;
      first = text(first.ids);
    }
    Pieces pieces(test);
    pieces.run({first});
    test.expect_logits(pieces.run({rest})[0], 0, "cut at " + std::to_string(cut));
    for (int64_t step = 1; step < 4; ++step) {
      test.expect_logits(pieces.run({text({expected[step - 1]})})[0], step, "cut at " + std::to_string(cut));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Generate, GoldenGenerate,
                         ::testing::Values("greedy-csa2", "greedy-short", "greedy-engram", "greedy-vlm"), [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// Sequences of different lengths that start and end at different times give what each gives alone.
class BatchedGenerate : public ::testing::TestWithParam<const char*> {
 protected:
  // Prompts of many lengths cut out of the golden sequence; with images where the case has one.
  static std::vector<Prompt> prompts(const Case& test) {
    const std::vector<int64_t> ids = list(test.tensors.at("all_ids"));
    std::vector<Prompt> prompts;
    for (int64_t i = 0; i < 9; ++i) {
      if (i % 3 == 1) {
        prompts.push_back(test.prompt());
      } else {
        const int64_t first = i % 5, length = 1 + (i * 7) % 15;
        const int64_t begin = static_cast<int64_t>(ids.size()) - 15 - 5 + first;
        prompts.push_back(text({ids.begin() + begin, ids.begin() + begin + length}));
      }
    }
    return prompts;
  }

  static std::map<int64_t, std::vector<int64_t>> generate(Case& test, const std::vector<Prompt>& prompts,
                                                          GenerateOptions options) {
    Generator generator(test.config(), *test.run.parameters, test.hashes(), options);
    for (const Prompt& prompt : prompts) generator.add(prompt);
    std::map<int64_t, std::vector<int64_t>> tokens;
    while (!generator.idle()) {
      for (const Generator::Token& token : generator.step()) tokens[token.sequence].push_back(token.id);
    }
    return tokens;
  }
};

TEST_P(BatchedGenerate, SequencesGiveWhatEachGivesAlone) {
  Case test(GetParam());
  const std::vector<Prompt> all = prompts(test);
  for (const double temperature : {0.0, 0.8}) {
    GenerateOptions options;
    options.max_new_tokens = 8;
    options.temperature = temperature;
    options.top_p = 0.9;
    options.seed = 7;
    options.max_sequences = 1;
    const auto alone = generate(test, all, options);
    ASSERT_EQ(alone.size(), all.size());
    // Ends at different times: a token that many sequences reach stops them.
    options.stop_ids = {alone.at(1)[4], alone.at(0)[2]};
    auto stopped = alone;
    std::set<size_t> lengths;
    for (auto& [sequence, tokens] : stopped) {
      const auto end = std::find_first_of(tokens.begin(), tokens.end(), options.stop_ids.begin(), options.stop_ids.end());
      if (end != tokens.end()) tokens.erase(end + 1, tokens.end());
      lengths.insert(tokens.size());
    }
    EXPECT_GT(lengths.size(), 1u);
    for (const auto& [sequences, tokens] : {std::pair<int64_t, int64_t>{64, 16384}, {3, 16384}, {64, 25}}) {
      options.max_sequences = sequences;
      options.tokens_per_run = tokens;
      EXPECT_EQ(generate(test, all, options), stopped)
          << sequences << " sequences, " << tokens << " tokens a run, temperature " << temperature;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Generate, BatchedGenerate, ::testing::Values("greedy-csa2", "greedy-engram", "greedy-vlm"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

TEST(ChooseToken, GreedyTakesTheFirstOfEquals) {
  EXPECT_EQ(choose_token(at::tensor({1.f, 3.f, 3.f, 2.f}), {}, 0, 0), 1);
}

TEST(ChooseToken, DrawsFollowTheSharesAtTheTemperature) {
  const at::Tensor logits = at::tensor({0.f, 1.f, 2.f, -1.f});
  GenerateOptions options;
  options.temperature = 2.0;
  const at::Tensor shares = at::softmax(logits / 2.0, 0);
  at::Tensor counts = at::zeros({4});
  constexpr int64_t kDraws = 20000;
  for (int64_t i = 0; i < kDraws; ++i) counts[choose_token(logits, options, 3, i)] += 1;
  EXPECT_LT((counts / static_cast<double>(kDraws) - shares).abs().max().item<double>(), 0.012);
}

TEST(ChooseToken, TopPDrawsAmongTheFewestTokensThatHoldTheShare) {
  const at::Tensor logits = at::tensor({0.1f, 0.4f, 0.2f, 0.3f}).log();
  GenerateOptions options;
  options.temperature = 1.0;
  options.top_p = 0.65;
  std::set<int64_t> seen;
  for (int64_t i = 0; i < 500; ++i) seen.insert(choose_token(logits, options, 0, i));
  EXPECT_EQ(seen, (std::set<int64_t>{1, 3}));
  options.top_p = 0.01;
  for (int64_t i = 0; i < 50; ++i) EXPECT_EQ(choose_token(logits, options, 0, i), 1);
}

TEST(ChooseToken, DrawsDependOnSeedSequenceAndPosition) {
  const at::Tensor logits = at::zeros({1000});
  GenerateOptions options;
  options.temperature = 1.0;
  const int64_t one = choose_token(logits, options, 5, 9);
  EXPECT_EQ(choose_token(logits, options, 5, 9), one);
  EXPECT_NE(choose_token(logits, options, 5, 10), one);
  EXPECT_NE(choose_token(logits, options, 6, 9), one);
  options.seed = 1;
  EXPECT_NE(choose_token(logits, options, 5, 9), one);
}

}  // namespace
}  // namespace hyperparallel::train
