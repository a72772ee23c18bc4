// Exact match of a model's answers with those of a data file.
//
// Each line's final assistant turn is taken away, the rest is answered greedily, and the two texts are compared without
// surrounding white space. Answers of the easy-VQA set are also counted by type, all others under "all". Baseline: always the
// most frequent answer of the same split (of the same type, where one is named).
#pragma once

#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "train/answers.h"

namespace hyperparallel::train {

struct EvaluateOptions {
  std::string split = "test";  // train | validation | test: the files of the configuration
  int64_t limit = 0;           // the first lines that can be read; 0: all
  int64_t batch = 128;         // sequences at once
  int64_t max_new_tokens = 32;
  int64_t examples = 12;  // of the report
};

struct Answered {
  std::string question;             // text of the last user turn
  std::vector<std::string> images;  // pictures of the conversation: absolute paths or data URIs
  std::string expected, predicted;
  bool correct() const { return expected == predicted; }
};

// Answers the split. Lines that cannot be read are errors or left out with a warning, as data.bad_line and data.bad_image say.
// `progress(answered, of)` is called now and then. Throws UsageError for a split without files.
std::vector<Answered> answer_split(const Config& config, RunModel& model, const data::Tokenizer& tokenizer,
                                   const EvaluateOptions& options, const std::function<void(int64_t, int64_t)>& progress);

// The contents of eval.json (train/report.h).
nlohmann::ordered_json score(const std::vector<Answered>& answers, const EvaluateOptions& options);

// Answers as examples of the report, in their order: the contents of samples.json (train/report.h).
nlohmann::ordered_json examples_of(const std::vector<Answered>& answers);

// What score() found, as a table for people.
std::string score_table(const nlohmann::ordered_json& result);

}  // namespace hyperparallel::train
