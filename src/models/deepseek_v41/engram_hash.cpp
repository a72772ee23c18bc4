#include "models/deepseek_v41/engram_hash.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "models/deepseek_v41/numpy_random.h"

namespace hyperparallel::models::deepseek_v41 {
namespace {

bool is_prime(int64_t n) {
  if (n < 2) return false;
  for (int64_t divisor = 2; divisor * divisor <= n; ++divisor) {
    if (n % divisor == 0) return false;
  }
  return true;
}

}  // namespace

std::vector<std::vector<int64_t>> engram_primes(int64_t base, int64_t layers, int64_t columns) {
  std::vector<std::vector<int64_t>> primes(layers);
  int64_t candidate = base;
  for (auto& layer : primes) {
    for (; static_cast<int64_t>(layer.size()) < columns; ++candidate) {
      if (is_prime(candidate)) layer.push_back(candidate);
    }
  }
  return primes;
}

std::vector<int64_t> engram_multipliers(int64_t layer_id, int64_t max_ngram, int64_t compressed_vocab_size) {
  constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
  const int64_t bound = compressed_vocab_size > 0 ? kLargest / compressed_vocab_size / 2 : 0;
  if (bound <= std::numeric_limits<uint32_t>::max()) {  // numpy draws smaller bounds in another way
    throw ConfigError("engram_compressed_vocab_size is {}; accepted: 1 to {}", compressed_vocab_size, kLargest >> 33);
  }
  NumpyRandom random(static_cast<uint64_t>(10007 * layer_id));
  std::vector<int64_t> multipliers(max_ngram);
  for (int64_t& multiplier : multipliers) multiplier = static_cast<int64_t>(random.below(bound)) * 2 + 1;
  return multipliers;
}

EngramHasher::EngramHasher(const TextConfig& config, std::vector<int32_t> token_map)
    : token_map_(std::move(token_map)),
      max_ngram_(config.engram_max_ngram_size),
      heads_(config.engram_n_heads),
      columns_(config.engram_columns()) {
  const auto vocabulary = static_cast<int64_t>(token_map_.size());
  const int64_t pad_id = config.engram_pad_id;
  if (pad_id < 0 || pad_id >= vocabulary) {
    throw ConfigError("engram_pad_id is {}, but the token map has the ids 0 to {}", pad_id, vocabulary - 1);
  }
  const auto [least, most] = std::minmax_element(token_map_.begin(), token_map_.end());
  if (*least < 0 || *most >= config.engram_compressed_vocab_size) {
    throw ConfigError("engram_compressed_vocab_size is {}, but the token map has the classes {} to {}",
                      config.engram_compressed_vocab_size, *least, *most);
  }
  pad_ = token_map_[pad_id];
  const auto layers = static_cast<int64_t>(config.engram_layer_ids.size());
  const auto primes = engram_primes(config.engram_vocab_size, layers, columns_);
  for (int64_t i = 0; i < layers; ++i) {
    const int64_t id = config.engram_layer_ids[i];
    Layer layer{engram_multipliers(id, max_ngram_, config.engram_compressed_vocab_size), primes[i], {}};
    layer.first_rows.resize(columns_);
    std::exclusive_scan(layer.primes.begin(), layer.primes.end(), layer.first_rows.begin(), int64_t{0});
    const int64_t rows = std::accumulate(layer.primes.begin(), layer.primes.end(), int64_t{0});
    if (config.engram_num_embeddings.at(i) < rows) {
      throw ConfigError("engram_num_embeddings[{}] is {}; the primes of layer {} need {} rows", i,
                        config.engram_num_embeddings[i], id, rows);
    }
    layers_.push_back(std::move(layer));
  }
}

// NOTE [Sticky look-back]: a window is the one before, moved by one place, so that whatever stopped the look-back there stops
// it here too. A dead token clears the window for all that follow.
void EngramHasher::append(Window& window, std::span<const int64_t> input_ids, std::span<const uint8_t> dead,
                          std::span<int64_t> rows, std::span<int64_t> ngrams) const {
  HP_CHECK(static_cast<int64_t>(window.size()) == max_ngram_, "a window of {} places", window.size());
  HP_CHECK(dead.empty() || dead.size() == input_ids.size(), "{} flags for {} tokens", dead.size(), input_ids.size());
  HP_CHECK(rows.size() == input_ids.size() * layers() * columns_, "room for {} rows", rows.size());
  HP_CHECK(ngrams.empty() || ngrams.size() == input_ids.size() * max_ngram_, "room for {} window places", ngrams.size());
  for (size_t i = 0; i < input_ids.size(); ++i) {
    const int64_t id = input_ids[i];
    if (id < 0 || id >= static_cast<int64_t>(token_map_.size())) {
      throw DataError("token id {} is outside of the Engram token map, which has the ids 0 to {}", id, token_map_.size() - 1);
    }
    if (!dead.empty() && dead[i] != 0) {
      std::fill(window.begin(), window.end(), pad_);
    } else {
      std::shift_right(window.begin(), window.end(), 1);
      window[0] = token_map_[id];
    }
    hash_window(window, rows.data() + i * layers() * columns_);
    if (!ngrams.empty()) std::copy(window.begin(), window.end(), ngrams.begin() + i * max_ngram_);
  }
}

void EngramHasher::hash(std::span<const int64_t> input_ids, std::span<const uint8_t> dead, std::span<const int64_t> cu_seqlens,
                        std::span<int64_t> rows, std::span<int64_t> ngrams) const {
  HP_CHECK(!cu_seqlens.empty() && cu_seqlens.front() == 0 && std::is_sorted(cu_seqlens.begin(), cu_seqlens.end()) &&
               cu_seqlens.back() <= static_cast<int64_t>(input_ids.size()),
           "cu_seqlens must ascend from 0 to at most {}", input_ids.size());
  const auto append_range = [&](size_t begin, size_t count, std::span<const uint8_t> range_dead) {
    Window window = document_start();
    append(window, input_ids.subspan(begin, count), range_dead,
           rows.subspan(begin * layers() * columns_, count * layers() * columns_),
           ngrams.empty() ? ngrams : ngrams.subspan(begin * max_ngram_, count * max_ngram_));
  };
  for (size_t document = 0; document + 1 < cu_seqlens.size(); ++document) {
    const size_t begin = cu_seqlens[document], count = cu_seqlens[document + 1] - begin;
    append_range(begin, count, dead.empty() ? dead : dead.subspan(begin, count));
  }
  const size_t padding = cu_seqlens.back();
  append_range(padding, input_ids.size() - padding, std::vector<uint8_t>(input_ids.size() - padding, 1));
}

void EngramHasher::hash_window(const Window& window, int64_t* rows) const {
  for (const Layer& layer : layers_) {
    int64_t mix = window[0] * layer.multipliers[0];
    int64_t column = 0;
    for (int64_t place = 1; place < max_ngram_; ++place) {
      mix ^= window[place] * layer.multipliers[place];
      for (int64_t head = 0; head < heads_; ++head, ++column) *rows++ = mix % layer.primes[column] + layer.first_rows[column];
    }
  }
}

}  // namespace hyperparallel::models::deepseek_v41
