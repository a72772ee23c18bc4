#include "data/engram_token_map.h"

#include <gtest/gtest.h>

#include "support/safetensors.h"
#include "support/sha256.h"
#include "support/test_data.h"

namespace hyperparallel::data {
namespace {

using namespace hyperparallel::test;

void expect_golden_map(const std::string& tokenizer_file, const std::string& name) {
  const EngramTokenMap found = build_engram_token_map(Tokenizer::load(tokenizer_file));
  const auto described = nlohmann::json::parse(read_file(golden("data/engram-token-map.json"))).at(name);
  EXPECT_EQ(found.map, SafetensorsFile(golden("data/engram-token-map.safetensors")).values<int32_t>(name));
  EXPECT_EQ(found.classes, described.at("classes").get<int64_t>());
  EXPECT_EQ(sha256(found.map), described.at("sha256_int32_le"));
  EXPECT_EQ(sha256(std::vector<int64_t>(found.map.begin(), found.map.end())), described.at("sha256_int64_le"));
}

TEST(EngramTokenMap, OfTheReleasedTokenizerIsTheGoldenOne) {
  expect_golden_map(fetched("tokenizer-v41.json"), "v41");
}

TEST(EngramTokenMap, OfTheTinyTokenizerIsTheGoldenOne) {
  expect_golden_map(golden("data/tiny-tokenizer/tokenizer.json"), "tiny");
}

TEST(EngramTokenMap, KeysAreThoseOfTheReference) {
  for (const auto& line : read_json_lines(golden("data/engram-normalise.jsonl"))) {
    EXPECT_EQ(engram_key(line.at("text").get<std::string>()), line.at("key").get<std::string>()) << line.dump();
  }
}

}  // namespace
}  // namespace hyperparallel::data
