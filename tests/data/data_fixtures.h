// What the sample and loader tests share.
#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <string>

#include "base/error.h"
#include "base/file.h"
#include "data/batch.h"
#include "data/sample.h"
#include "support/scratch.h"
#include "support/test_data.h"

namespace hyperparallel::data {

inline const Tokenizer& tiny_tokenizer() {
  static const Tokenizer tokenizer = Tokenizer::load(test::golden("data/tiny-tokenizer/tokenizer.json"));
  return tokenizer;
}

// Writes a file in the folder and returns its path.
inline std::string write(const Scratch& folder, const std::string& name, const std::string& bytes) {
  file::write(folder / name, bytes);
  return (folder / name).string();
}

// Pictures of at most 64 tokens; a 64 x 64 one has 8.
inline ImageLimits small_images() {
  ImageLimits limits;
  limits.min_pixels = 3136;
  limits.max_image_tokens = 64;
  return limits;
}

// A line with one question and one answer; the question is `words` words longer than nothing, so that lengths differ.
inline std::string line_of(const std::string& answer, int words, const std::string& picture = "") {
  std::string question = "q";
  for (int i = 0; i < words; ++i) question += " word";
  const std::string image = picture.empty() ? "" : fmt::format(R"({{"type":"image_url","image_url":{{"url":"{}"}}}},)", picture);
  return fmt::format(
      R"({{"messages":[{{"role":"user","content":[{}{{"type":"text","text":"{}"}}]}},{{"role":"assistant","content":"{}"}}]}})",
      image, question, answer);
}

inline std::string golden_picture(const std::string& name) {
  return test::golden("data/images/" + name);
}

// What is trained on, as text.
inline std::string supervised_text(const Sample& sample) {
  std::vector<int64_t> ids;
  for (const int64_t label : sample.labels) {
    if (label != kIgnoreLabel) ids.push_back(label);
  }
  return tiny_tokenizer().decode(ids);
}

template <class Function>
std::string data_error(Function&& function) {
  try {
    function();
  } catch (const DataError& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace hyperparallel::data
