#include "train/evaluate.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "data/easy_vqa.h"
#include "data/image_url.h"
#include "data/jsonl.h"
#include "data/messages.h"
#include "data/ordered_queue.h"

namespace hyperparallel::train {
namespace {

using Json = nlohmann::ordered_json;

struct Loaded {
  std::optional<data::Sample> prompt;  // nothing: left out, `why` tells
  Answered answered;
  std::string why;
};

std::string text_of(const data::Message& message) {
  std::string text;
  for (const data::ContentBlock& block : message.content) {
    if (!block.is_image) text += block.text;
  }
  return trimmed(text);
}

std::string picture_path(const std::string& url, const std::filesystem::path& folder) {
  if (url.starts_with("data:")) return url;
  if (url.starts_with("file://")) return url.substr(7);
  return std::filesystem::absolute(folder / url).lexically_normal().string();
}

Loaded load_line(const data::SampleEncoder& encoder, const data::JsonlFile& file, int64_t sample) {
  const data::SampleId id{file.path(), file.line_number(sample)};
  const std::string folder = std::filesystem::path(file.path()).parent_path().string();
  Loaded loaded;
  try {
    const data::Conversation conversation = data::parse_conversation(file.read(sample), data::to_string(id));
    if (conversation.messages.back().role != data::Role::kAssistant) {
      throw DataError("{}: the last message must be the assistant's answer", data::to_string(id));
    }
    loaded.answered.expected = text_of(conversation.messages.back());
    for (const data::Message& message : conversation.messages) {
      if (message.role == data::Role::kUser) loaded.answered.question = text_of(message);
      for (const data::ContentBlock& block : message.content) {
        if (block.is_image) loaded.answered.images.push_back(picture_path(block.text, folder));
      }
    }
    loaded.prompt = encoder.encode_prompt(conversation, folder, id);
  } catch (const data::ImageError& error) {
    if (encoder.options().bad_image == data::BadInput::kError) throw;
    loaded.why = error.what();
  } catch (const DataError& error) {
    if (encoder.options().bad_line == data::BadInput::kError) throw;
    loaded.why = error.what();
  }
  return loaded;
}

const std::vector<DataSource>& files_of(const Config& config, const std::string& split) {
  if (split != "train" && split != "validation" && split != "test")
    throw UsageError("--split {}: expected train, validation or test", split);
  const std::vector<DataSource>& files = split == "train"  ? config.data.train
                                         : split == "test" ? config.data.test
                                                           : config.data.validation;
  if (files.empty()) throw UsageError("data.{} names no file to evaluate on", split);
  return files;
}

// How often each answer is expected.
struct Tally {
  int64_t count = 0, correct = 0;
  std::map<std::string, int64_t> expected;

  void add(const Answered& answered) {
    ++count;
    correct += answered.correct();
    ++expected[answered.expected];
  }
  double exact_match() const { return static_cast<double>(correct) / static_cast<double>(count); }
  const std::pair<const std::string, int64_t>& majority() const {
    return *std::max_element(expected.begin(), expected.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  }
  double baseline() const { return static_cast<double>(majority().second) / static_cast<double>(count); }
};

std::string type_of(const Answered& answered) {
  const std::string_view type = data::easy_vqa_answer_type(answered.expected);
  return type == "other" ? "all" : std::string(type);
}

Json example_of(const Answered& answered) {
  return {{"images", answered.images},       {"question", answered.question}, {"expected", answered.expected},
          {"predicted", answered.predicted}, {"correct", answered.correct()}, {"type", type_of(answered)}};
}

// Right and wrong ones, from all over the split.
Json choose_examples(const std::vector<Answered>& answers, int64_t count) {
  std::vector<const Answered*> by_outcome[2];
  for (const Answered& answered : answers) by_outcome[answered.correct()].push_back(&answered);
  const int64_t wrong = std::min<int64_t>(static_cast<int64_t>(by_outcome[0].size()),
                                          std::max(count / 2, count - static_cast<int64_t>(by_outcome[1].size())));
  Json examples = Json::array();
  for (const bool correct : {true, false}) {
    const auto& from = by_outcome[correct];
    const int64_t size = static_cast<int64_t>(from.size()), take = std::min(size, correct ? count - wrong : wrong);
    for (int64_t i = 0; i < take; ++i) examples.push_back(example_of(*from[i * size / take]));
  }
  return examples;
}

}  // namespace

std::vector<Answered> answer_split(const Config& config, RunModel& model, const data::Tokenizer& tokenizer,
                                   const EvaluateOptions& options, const std::function<void(int64_t, int64_t)>& progress) {
  std::vector<data::JsonlFile> files;
  for (const DataSource& source : files_of(config, options.split)) files.emplace_back(source.path.string());
  std::vector<std::pair<const data::JsonlFile*, int64_t>> lines;
  for (const data::JsonlFile& file : files) {
    for (int64_t i = 0; i < file.samples(); ++i) lines.emplace_back(&file, i);
  }
  const int64_t limit = options.limit > 0 ? options.limit : static_cast<int64_t>(lines.size());

  const data::SampleEncoder encoder(tokenizer, sample_options(config));
  data::OrderedQueue<Loaded> queue(std::max<int64_t>(1, config.data.workers), "eval data");
  std::vector<Answered> answers;
  size_t submitted = 0;
  int64_t answered = 0, left_out = 0;
  const auto next = [&]() -> std::optional<data::Sample> {
    for (;;) {
      const int64_t ahead = std::min(2 * options.batch, limit - static_cast<int64_t>(answers.size()));
      for (; submitted < lines.size() && queue.size() < ahead; ++submitted) {
        queue.submit([&encoder, line = lines[submitted]] { return load_line(encoder, *line.first, line.second); });
      }
      if (queue.size() == 0) return std::nullopt;
      Loaded loaded = queue.pop();
      if (loaded.prompt) {
        answers.push_back(std::move(loaded.answered));
        return std::move(loaded.prompt);
      }
      if (++left_out <= 10) log::warn("left out: {}", loaded.why);
    }
  };
  GenerateOptions generate;
  generate.max_new_tokens = options.max_new_tokens;
  generate.max_sequences = options.batch;
  answer_all(model, tokenizer, generate, next, [&](int64_t index, const std::string& text) {
    answers[index].predicted = text;
    progress(++answered, std::min(limit, static_cast<int64_t>(lines.size()) - left_out));
  });
  if (left_out > 0) log::warn("{} lines were left out", left_out);
  if (answers.empty()) throw DataError("data.{}: no line could be read", options.split);
  return answers;
}

nlohmann::ordered_json score(const std::vector<Answered>& answers, const EvaluateOptions& options) {
  Tally all;
  std::map<std::string, Tally> by_type;
  for (const Answered& answered : answers) {
    all.add(answered);
    by_type[type_of(answered)].add(answered);
  }
  Json types = Json::object(), type_baselines = Json::object();
  for (const auto& [type, tally] : by_type) {
    types[type] = {{"exact_match", tally.exact_match()},
                   {"count", tally.count},
                   {"baseline", tally.baseline()},
                   {"majority_answer", tally.majority().first}};
    type_baselines[type] = tally.baseline();
  }
  return {{"exact_match", all.exact_match()},
          {"count", all.count},
          {"split", options.split},
          {"baseline", {{"exact_match", all.baseline()}, {"majority_answer", all.majority().first}, {"by_type", type_baselines}}},
          {"by_type", types},
          {"examples", choose_examples(answers, options.examples)}};
}

nlohmann::ordered_json examples_of(const std::vector<Answered>& answers) {
  Json examples = Json::array();
  for (const Answered& answered : answers) examples.push_back(example_of(answered));
  return examples;
}

std::string score_table(const nlohmann::ordered_json& result) {
  const auto row = [](const std::string& name, int64_t count, double match, double baseline, const std::string& majority) {
    return fmt::format("{:<10} {:>9} {:>11.1f} % {:>8.1f} %  {}\n", name, count, 100 * match, 100 * baseline, majority);
  };
  std::string table =
      fmt::format("{:<10} {:>9} {:>13} {:>10}  {}\n", "answers", "questions", "exact match", "baseline", "always");
  for (const auto& [type, tally] : result.at("by_type").items()) {
    if (type == "all" && result.at("by_type").size() == 1) break;  // the same as the last row
    table += row(type == "all" ? "other" : type, tally.at("count"), tally.at("exact_match"), tally.at("baseline"),
                 tally.at("majority_answer"));
  }
  const auto& baseline = result.at("baseline");
  return table +
         row("all", result.at("count"), result.at("exact_match"), baseline.at("exact_match"), baseline.at("majority_answer"));
}

}  // namespace hyperparallel::train
