// Speed of Tokenizer::encode on one thread. `bench/tokenizer.py` runs it beside Hugging Face `tokenizers`.
//
// bench_tokenizer TOKENIZER_JSON TEXTS_JSONL: encodes every {"text"} of the file, the best of five passes.
#include <algorithm>
#include <chrono>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>

#include "data/tokenizer.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: bench_tokenizer TOKENIZER_JSON TEXTS_JSONL\n";
    return 2;
  }
  using Clock = std::chrono::steady_clock;
  const auto seconds_since = [](Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); };
  const auto load_begin = Clock::now();
  const auto tokenizer = hyperparallel::data::Tokenizer::load(argv[1]);
  const double load_seconds = seconds_since(load_begin);

  std::vector<std::string> texts;
  size_t bytes = 0;
  std::ifstream stream(argv[2]);
  for (std::string line; std::getline(stream, line);) {
    texts.push_back(nlohmann::json::parse(line).at("text"));
    bytes += texts.back().size();
  }
  double best = 1e9;
  size_t tokens = 0;
  for (int pass = 0; pass < 5; ++pass) {
    const auto begin = Clock::now();
    tokens = 0;
    for (const std::string& text : texts) tokens += tokenizer.encode(text).size();
    best = std::min(best, seconds_since(begin));
  }
  std::cout << nlohmann::json{{"bytes", bytes}, {"tokens", tokens}, {"seconds", best}, {"load_seconds", load_seconds}} << "\n";
}
