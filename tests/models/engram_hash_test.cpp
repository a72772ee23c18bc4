#include "models/deepseek_v41/engram_hash.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

#include "base/error.h"
#include "models/deepseek_v41/numpy_random.h"
#include "support/safetensors.h"
#include "support/sha256.h"
#include "support/test_data.h"

namespace hyperparallel::models::deepseek_v41 {
namespace {

using namespace hyperparallel::test;
using nlohmann::json;
using Ids = std::vector<int64_t>;

TextConfig engram_config(const json& text) {
  TextConfig config;
  config.engram_layer_ids = text.at("engram_layer_ids").get<Ids>();
  config.engram_num_embeddings = text.at("engram_num_embeddings").get<Ids>();
  config.engram_vocab_size = text.at("engram_vocab_size");
  config.engram_max_ngram_size = text.at("engram_max_ngram_size");
  config.engram_n_heads = text.at("engram_n_heads");
  config.engram_pad_id = text.at("engram_pad_id");
  config.engram_compressed_vocab_size = text.at("engram_compressed_vocab_size");
  return config;
}

TextConfig released_config() {
  return engram_config(json::parse(read_file(golden("released-config.json"))).at("text_config"));
}

const EngramHasher& released_hasher() {
  static const EngramHasher hasher(released_config(),
                                   SafetensorsFile(golden("data/engram-token-map.safetensors")).values<int32_t>("v41"));
  return hasher;
}

json hash_goldens() {
  return json::parse(read_file(golden("data/engram-hash.json")));
}

Ids hash_document(const EngramHasher& hasher, const Ids& ids, const std::vector<uint8_t>& dead = {}) {
  Ids rows(ids.size() * hasher.layers() * hasher.columns());
  hasher.hash(ids, dead, Ids{0, static_cast<int64_t>(ids.size())}, rows);
  return rows;
}

TEST(NumpyRandom, DrawsThePublishedNumbers) {
  NumpyRandom raw(10007);
  for (const uint64_t expected : {0xd2c3f84026661e33u, 0x0d4fb6969eb57435u, 0x62e6e1c58c3bd72bu}) EXPECT_EQ(raw.next(), expected);
  NumpyRandom bounded(10007);
  for (const uint64_t expected : {38316048023122u, 2419938046656u, 17979836159674u})
    EXPECT_EQ(bounded.below(46539438283891), expected);
}

TEST(EngramHash, PrimesAndMultipliersAreThoseOfTheRelease) {
  const json goldens = hash_goldens();
  const auto primes = engram_primes(16000000, 2, 24);
  EXPECT_EQ(primes[0], goldens["primes"]["1"].get<Ids>());
  EXPECT_EQ(primes[1], goldens["primes"]["14"].get<Ids>());
  EXPECT_EQ(std::accumulate(primes[0].begin(), primes[0].end(), int64_t{0}), 384006168);
  EXPECT_EQ(std::accumulate(primes[1].begin(), primes[1].end(), int64_t{0}), 384016682);
  for (const int64_t layer : {1, 14}) {
    EXPECT_EQ(engram_multipliers(layer, 4, 99092), goldens["multipliers"][std::to_string(layer)].get<Ids>());
  }
}

TEST(EngramHash, OfTwoTokensHasThePublishedDigests) {
  const Ids rows = hash_document(released_hasher(), {0, 3});  // [tokens 2, layers 2, columns 24]
  EXPECT_EQ(sha256(rows), "f5a64799492bea90bc6d87f0cb8a67bb983441e1cd9c12ec2e7b8df6cbcfee1d");
  Ids layers[2];
  for (size_t i = 0; i < rows.size(); ++i) layers[i / 24 % 2].push_back(rows[i]);
  EXPECT_EQ(sha256(layers[0]), "8e0187ea859a7db65517a540eb5210457ec907fd0b2f44042d830366cbedbda5");
  EXPECT_EQ(sha256(layers[1]), "33e046238287e6e8b7c3466bdb4b7b47182ad19f9115afac8a1983ede219ba80");
}

TEST(EngramHash, OfTextAndImageSpansIsTheGoldenOne) {
  const json goldens = hash_goldens();
  for (const json& example : goldens.at("cases")) {
    const Ids ids = example.at("ids");
    const std::vector<uint8_t> dead = example.at("dead");
    const Ids rows = hash_document(released_hasher(), ids, dead);
    for (size_t i = 0; i < ids.size(); ++i) {
      for (const int layer : {0, 1}) {
        const Ids expected = example.at(layer == 0 ? "layer1" : "layer14").at(i);
        if (dead[i]) continue;  // not given
        EXPECT_EQ(Ids(&rows[(2 * i + layer) * 24], &rows[(2 * i + layer) * 24] + 24), expected)
            << example["name"] << " position " << i;
      }
    }
  }
}

// A model fixture: its config, token map and the hashes of its rows.
struct ModelCase {
  explicit ModelCase(const std::string& name)
      : tensors(golden("model/" + name + "/case.safetensors")),
        config(engram_config(json::parse(read_file(golden("model/" + name + "/config.json"))).at("text_config"))),
        notes(json::parse(read_file(golden("model/" + name + "/notes.json")))),
        hasher(config, token_map()) {}

  std::vector<int32_t> token_map() const {
    const auto map = tensors.values<int64_t>("token_map");
    return {map.begin(), map.end()};
  }

  SafetensorsFile tensors;
  TextConfig config;
  json notes;
  EngramHasher hasher;
};

class EngramHashOfModel : public ::testing::TestWithParam<const char*> {};

TEST_P(EngramHashOfModel, IsTheGoldenOne) {
  const ModelCase model(GetParam());
  const Ids ids = model.tensors.values<int64_t>("input_ids");
  const auto dead = model.tensors.contains("image_mask") ? model.tensors.values<uint8_t>("image_mask") : std::vector<uint8_t>{};
  const bool packed = model.tensors.contains("cu_seqlens");
  Ids cu_seqlens, expected_rows, expected_ngrams;
  const auto expect = [&](const std::string& prefix) {
    const auto rows = model.tensors.values<int64_t>(prefix + "engram.hash_ids");
    const auto ngrams = model.tensors.values<int64_t>(prefix + "engram.ngram_tokens");
    expected_rows.insert(expected_rows.end(), rows.begin(), rows.end());
    expected_ngrams.insert(expected_ngrams.end(), ngrams.begin(), ngrams.end());
  };
  if (packed) {
    for (const int32_t start : model.tensors.values<int32_t>("cu_seqlens")) cu_seqlens.push_back(start);
    expect("doc0.");
    expect("doc1.");
  } else {
    const int64_t length = model.tensors.shape("input_ids")[1];
    for (int64_t start = 0; start <= static_cast<int64_t>(ids.size()); start += length) cu_seqlens.push_back(start);
    expect("");
  }
  Ids rows(expected_rows.size()), ngrams(expected_ngrams.size());
  model.hasher.hash(ids, dead, cu_seqlens, rows, ngrams);
  EXPECT_EQ(ngrams, expected_ngrams);
  EXPECT_EQ(rows, expected_rows);
}

TEST_P(EngramHashOfModel, UsesTheGoldenPrimesAndMultipliers) {
  const ModelCase model(GetParam());
  const TextConfig& config = model.config;
  const auto primes = engram_primes(config.engram_vocab_size, config.engram_layer_ids.size(), config.engram_columns());
  for (size_t i = 0; i < primes.size(); ++i) {
    Ids expected;
    for (const auto& order : model.notes.at("engram_primes").at(i)) {
      for (const int64_t prime : order) expected.push_back(prime);
    }
    EXPECT_EQ(primes[i], expected);
    EXPECT_EQ(engram_multipliers(config.engram_layer_ids[i], config.engram_max_ngram_size, config.engram_compressed_vocab_size),
              model.notes.at("engram_multipliers").at(i).get<Ids>());
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, EngramHashOfModel, ::testing::Values("csa2-engram", "packed", "vlm-tiny"), [](const auto& info) {
  std::string name = info.param;
  std::erase(name, '-');
  return name;
});

Ids random_ids(size_t count) {
  std::mt19937 random(3);
  Ids ids(count);
  for (int64_t& id : ids) id = 3 + random() % 128000;
  return ids;
}

size_t differences(const Ids& a, const Ids& b) {
  size_t count = 0;
  for (size_t i = 0; i < a.size(); ++i) count += a[i] != b[i];
  return count;
}

TEST(EngramHash, InPiecesIsThatOfTheWhole) {
  const Ids ids = random_ids(40);
  std::vector<uint8_t> dead(ids.size(), 0);
  dead[17] = dead[18] = 1;
  const Ids whole = hash_document(released_hasher(), ids, dead);
  auto window = released_hasher().document_start();
  Ids pieces(whole.size());
  for (size_t begin = 0; begin < ids.size();) {
    const size_t count = std::min<size_t>(begin < 10 ? 1 : 9, ids.size() - begin);
    released_hasher().append(window, std::span(ids).subspan(begin, count), std::span(dead).subspan(begin, count),
                             std::span(pieces).subspan(begin * 48, count * 48));
    begin += count;
  }
  EXPECT_EQ(pieces, whole);
}

TEST(EngramHash, RestartingAChunkChangesItsFirstThreePositions) {
  const Ids ids = random_ids(20);
  Ids cut(ids.size() * 48);
  released_hasher().hash(ids, {}, Ids{0, 10, 20}, cut);
  EXPECT_EQ(differences(hash_document(released_hasher(), ids), cut), 2u * (24 + 16 + 8));
}

TEST(EngramHash, ADeadTokenChangesItsOwnAndTheNextThreePositions) {
  const Ids ids = random_ids(20);
  std::vector<uint8_t> dead(ids.size(), 0);
  dead[8] = 1;
  const Ids plain = hash_document(released_hasher(), ids), image = hash_document(released_hasher(), ids, dead);
  for (size_t i = 0; i < ids.size(); ++i) {
    const bool same = std::equal(&plain[i * 48], &plain[i * 48] + 48, &image[i * 48]);
    EXPECT_EQ(same, i < 8 || i > 11) << i;
  }
}

TEST(EngramHash, LooksBackThroughAPadIdInsideADocument) {
  Ids ids = random_ids(4), ngrams(4 * 4), rows(4 * 48);
  ids[2] = 2;
  released_hasher().hash(ids, {}, Ids{0, 4}, rows, ngrams);
  EXPECT_EQ(ngrams[8], 2);
  EXPECT_EQ(ngrams[9], ngrams[4]);
  EXPECT_EQ(ngrams[14], ngrams[4]);
}

TEST(EngramHash, PaddingAfterTheDocumentsHashesAsDead) {
  const Ids ids = random_ids(6);
  Ids rows(6 * 48), ngrams(6 * 4);
  released_hasher().hash(ids, {}, Ids{0, 4}, rows, ngrams);
  EXPECT_EQ(Ids(ngrams.begin() + 16, ngrams.end()), Ids(8, 2));
}

TEST(EngramHash, RefusesWhatDoesNotFitTogether) {
  const auto map = SafetensorsFile(golden("data/engram-token-map.safetensors")).values<int32_t>("v41");
  auto config = released_config();
  config.engram_num_embeddings[1] -= 1;
  EXPECT_THROW(EngramHasher(config, map), ConfigError);
  config = released_config();
  config.engram_compressed_vocab_size = 99091;
  EXPECT_THROW(EngramHasher(config, map), ConfigError);
  config = released_config();
  config.engram_pad_id = 129280;
  EXPECT_THROW(EngramHasher(config, map), ConfigError);
  EXPECT_THROW(engram_multipliers(1, 4, int64_t{1} << 40), ConfigError);
  EXPECT_THROW(hash_document(released_hasher(), {129280}), DataError);
}

}  // namespace
}  // namespace hyperparallel::models::deepseek_v41
