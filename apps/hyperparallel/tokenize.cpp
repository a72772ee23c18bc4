// `hyperparallel tokenize`: {"text": ...} lines from standard input become {"ids": [...]} lines on standard output.
#include "tokenize.h"

#include <algorithm>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>

#include "arguments.h"
#include "base/error.h"
#include "data/tokenizer.h"

namespace hyperparallel {
namespace {

std::string text_of_line(const std::string& line, int64_t number) {
  nlohmann::json object;
  try {
    object = nlohmann::json::parse(line);
  } catch (const nlohmann::json::parse_error& error) {
    const std::string_view message = error.what();  // "... parse error at line 1, column N: ...": its line is not the stream's
    throw DataError("standard input, line {}: not JSON: {}", number,
                    message.substr(std::min(message.find("column"), message.size())));
  }
  const auto text = object.is_object() ? object.find("text") : object.end();
  if (text == object.end() || !text->is_string()) {
    throw DataError("standard input, line {}: an object with a string `text` is needed; found {}", number,
                    object.dump(-1, ' ', true).substr(0, 200));
  }
  return std::move(text->get_ref<std::string&>());
}

void write_ids(const std::vector<int64_t>& ids) {
  const std::string line = fmt::format("{{\"ids\": [{}]}}\n", fmt::join(ids, ", "));
  if (std::fwrite(line.data(), 1, line.size(), stdout) != line.size()) throw DataError("standard output: cannot write");
}

}  // namespace

int tokenize(const std::vector<std::string>& arguments) {
  std::string tokenizer_file;
  CLI::App app("Reads {\"text\": ...}, one object a line, from standard input and writes {\"ids\": [...]} for each.",
               "hyperparallel tokenize");
  app.add_option("--tokenizer", tokenizer_file, "a tokenizer.json")->required();
  if (!parse_arguments(app, arguments)) return static_cast<int>(ExitCode::kFinished);

  const auto tokenizer = data::Tokenizer::load(tokenizer_file);
  std::ios::sync_with_stdio(false);
  int64_t number = 0;
  for (std::string line; std::getline(std::cin, line);) write_ids(tokenizer.encode(text_of_line(line, ++number)));
  if (std::fflush(stdout) != 0) throw DataError("standard output: cannot write");
  return static_cast<int>(ExitCode::kFinished);
}

}  // namespace hyperparallel
