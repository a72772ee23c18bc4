#include "generate.h"

#include <iostream>
#include <map>
#include <utility>

#include "arguments.h"
#include "base/error.h"
#include "checkpoint/checkpoint.h"
#include "data/json_text.h"
#include "data/messages.h"
#include "models/families/families.h"
#include "train/answers.h"

namespace hyperparallel {
namespace {

namespace fs = std::filesystem;

struct GenerateArguments {
  std::string model, tokenizer, prompt;
  std::vector<std::string> images;
  bool thinking = false;
  train::GenerateOptions options;
};

// The configuration that a checkpoint was saved with, or that of a Hugging Face folder; paths of the tokenizer filled in.
train::Config config_of(const fs::path& folder, const GenerateArguments& given) {
  train::Config config;
  if (!fs::exists(folder / "config.yaml") || train::is_hf_folder(folder)) {
    config.model.architecture = models::read_architecture((folder / "config.json").string());
    if (fs::exists(folder / "tokenizer.json")) config.data.tokenizer = folder / "tokenizer.json";
  } else {
    config = train::load_config(folder / "config.yaml");
  }
  if (!given.tokenizer.empty()) config.data.tokenizer = given.tokenizer;
  if (config.data.tokenizer.empty()) throw UsageError("{} has no tokenizer.json: name one with --tokenizer", folder.string());
  config.data.thinking = given.thinking;
  return config;
}

data::Conversation question(const GenerateArguments& given) {
  data::Message message;
  for (const std::string& image : given.images) message.content.push_back({true, image});
  message.content.push_back({false, given.prompt});
  data::Conversation conversation;
  conversation.messages.push_back(std::move(message));
  return conversation;
}

// One JSON object a line, in the order of the lines: {"answer": ...}.
void answer_lines(train::RunModel& model, const data::SampleEncoder& encoder, const train::GenerateOptions& options) {
  data::SampleId id{"standard input", 0};
  std::map<int64_t, std::string> ready;
  int64_t printed = 0;
  const auto next = [&]() -> std::optional<data::Sample> {
    for (std::string line; std::getline(std::cin, line);) {
      ++id.line;
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      return encoder.encode_prompt(data::parse_conversation(line, data::to_string(id)), fs::current_path().string(), id);
    }
    return std::nullopt;
  };
  train::answer_all(model, encoder.tokenizer(), options, next, [&](int64_t index, const std::string& text) {
    ready[index] = text;
    for (auto it = ready.find(printed); it != ready.end(); it = ready.find(++printed)) {
      fmt::print("{}\n", data::python_json(data::OrderedJson{{"answer", it->second}}));
      ready.erase(it);
    }
  });
}

}  // namespace

int generate(const std::vector<std::string>& arguments) {
  CLI::App app(
      "Answers a prompt, or conversations read from standard input: one JSON object a line with `messages`; the answer takes the "
      "place of "
      "a final assistant message. Greedy unless a temperature is given.",
      "hyperparallel generate");
  GenerateArguments given;
  app.add_option("MODEL", given.model, "a checkpoint, a run's folder (its latest checkpoint), or a Hugging Face folder")
      ->required();
  app.add_option("--tokenizer", given.tokenizer,
                 "a tokenizer.json (default: the one of the checkpoint's configuration or the folder)");
  app.add_option("--prompt", given.prompt, "a question; without it, conversations are read from standard input");
  app.add_option("--image", given.images, "a picture before the question; may be repeated");
  app.add_flag("--thinking", given.thinking, "ask for reasoning before the answer");
  app.add_option("--max-new-tokens", given.options.max_new_tokens, "longest answer")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--temperature", given.options.temperature, "0: always the likeliest token")
      ->check(CLI::Range(0.0, 1e6))
      ->capture_default_str();
  app.add_option("--top-p", given.options.top_p, "draw among the fewest tokens that hold this share")
      ->check(CLI::Range(0.0, 1.0))
      ->capture_default_str();
  app.add_option("--seed", given.options.seed, "of the draws")->capture_default_str();
  app.add_option("--batch", given.options.max_sequences, "conversations at once")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  if (!parse_arguments(app, arguments)) return static_cast<int>(ExitCode::kFinished);
  if (std::isnan(given.options.temperature) || std::isnan(given.options.top_p))  // which lie within any range
    throw UsageError("--temperature and --top-p: expected numbers, found nan");
  if (given.prompt.empty() && !given.images.empty()) throw UsageError("--image needs --prompt");

  const fs::path folder = train::resolve_weights(given.model);
  const train::Config config = config_of(folder, given);
  require(*config.model.architecture, models::Ability::kGeneration, "`generate`");
  train::set_up_libtorch(config.train);
  const data::Tokenizer tokenizer = data::Tokenizer::load(config.data.tokenizer.string());
  const auto model = train::build_run_model(config, tokenizer);
  train::load_weights(*model->parameters, folder);
  const data::SampleEncoder encoder(tokenizer, train::sample_options(config));
  if (given.prompt.empty()) {
    answer_lines(*model, encoder, given.options);
  } else {
    std::optional<data::Sample> prompt = encoder.encode_prompt(question(given), fs::current_path().string(), {"--prompt", 1});
    const auto next = [&] { return std::exchange(prompt, std::nullopt); };
    train::answer_all(*model, tokenizer, given.options, next, [](int64_t, const std::string& text) { fmt::print("{}\n", text); });
  }
  if (std::fflush(stdout) != 0) throw DataError("standard output: cannot write");
  return static_cast<int>(ExitCode::kFinished);
}

}  // namespace hyperparallel
