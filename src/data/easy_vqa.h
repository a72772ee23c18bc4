// The easy-VQA data set (PyPI package easy-vqa 1.0, MIT, Copyright (c) 2019 Victor Zhou) as messages JSONL.
//
// Prepared, it is a folder with train.jsonl, validation.jsonl, test.jsonl, images/ and dataset.json. One line a question:
// a user message of a picture (path relative to the JSONL) and the question, and an assistant message with the answer.
// train-shape.jsonl holds those lines of train.jsonl whose answer is a shape, to be mixed in more often: they are few (13 %) and
// the hardest to learn.
// Validation is a held-out part of the package's training pictures: every 20th picture with all of its questions.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hyperparallel::data {

struct EasyVqaSplit {
  std::string name;  // train, validation or test
  int64_t pictures = 0;
  int64_t yes_no = 0, shape = 0, color = 0;  // questions by the type of their answer

  int64_t questions() const { return yes_no + shape + color; }
  bool operator==(const EasyVqaSplit&) const = default;
};

// "yes/no", "shape" or "color" for the 13 answers of the set; "other" for any other text.
std::string_view easy_vqa_answer_type(std::string_view answer);

// The data folder (with train/ and test/) of an easy-vqa package installed in .venv of the working folder or of any folder above
// the program, in this order; nothing if there is none.
std::optional<std::filesystem::path> find_easy_vqa();

// The splits of a folder that prepare_easy_vqa finished earlier; nothing if `out` is no such folder. Writes train-shape.jsonl
// where that is missing.
std::optional<std::vector<EasyVqaSplit>> prepared_easy_vqa(const std::filesystem::path& out);

// Writes the prepared set to `out`, which must be absent or an empty folder. `source` is the package's data folder, or the folder
// of an unpacked wheel. The work is done in `out`.partial, which is renamed at the end: whatever stops it, `out` is never
// half-written and the next run begins anew. Throws DataError for a package that is not as expected, UsageError for an `out` in
// use.
std::vector<EasyVqaSplit> prepare_easy_vqa(const std::filesystem::path& source, const std::filesystem::path& out);

}  // namespace hyperparallel::data
