// Engram hashing: which rows of the n-gram tables a position looks up (docs/model.md, Engram).
//
// A position's window is its compressed token and those before it, current first. At a document's start and at a dead position
// (of an image, or padding) the look-back stops: all further places hold the compressed pad, and a dead position's own window
// holds nothing else. The pad id among a document's tokens is a token like any other (the fixture `csa2-engram` has some): its
// place holds the compressed pad, the look-back goes on. For each n-gram order n = 2 .. max and head, the row is a hash of the
// window's first n entries.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "models/deepseek_v41/config.h"

namespace hyperparallel::models::deepseek_v41 {

// One prime for each (layer, order, head): [layers][(max_ngram - 1) * heads], order major. The smallest primes from `base` on, in
// that order, none used twice.
std::vector<std::vector<int64_t>> engram_primes(int64_t base, int64_t layers, int64_t columns);

// Odd multipliers of the window's places, [max_ngram]: as numpy's Generator(PCG64(10007 * layer_id)).integers draws them.
// Throws ConfigError for a compressed vocabulary that leaves no room for them.
std::vector<int64_t> engram_multipliers(int64_t layer_id, int64_t max_ngram, int64_t compressed_vocab_size);

class EngramHasher {
 public:
  // `token_map` [vocab]: token id to compressed id. Throws ConfigError when the map, the tables' sizes and the config disagree.
  EngramHasher(const TextConfig& config, std::vector<int32_t> token_map);

  int64_t layers() const { return static_cast<int64_t>(layers_.size()); }
  int64_t columns() const { return columns_; }  // rows looked up by a position in a layer
  int64_t max_ngram() const { return max_ngram_; }

  // The last window of a document so far, [max_ngram]; all that is needed to go on.
  using Window = std::vector<int64_t>;
  Window document_start() const { return Window(max_ngram_, pad_); }

  // Goes on with a document: `window` becomes that of the last of `input_ids`. The pieces of a document, one after another, give
  // what the whole gives at once. Throws DataError for an id outside of the token map.
  // input_ids  [tokens]
  // dead       [tokens], not 0 at image positions; or empty: none
  // rows       [tokens, layers, columns] out: rows of each layer's table
  // ngrams     [tokens, max_ngram] out: the windows; or empty: not wanted
  void append(Window& window, std::span<const int64_t> input_ids, std::span<const uint8_t> dead, std::span<int64_t> rows,
              std::span<int64_t> ngrams = {}) const;

  // All documents of a packed row, each from its start. cu_seqlens [documents + 1]: ascending from 0; positions from its last
  // entry on are padding: they belong to no document and hash as dead.
  void hash(std::span<const int64_t> input_ids, std::span<const uint8_t> dead, std::span<const int64_t> cu_seqlens,
            std::span<int64_t> rows, std::span<int64_t> ngrams = {}) const;

 private:
  struct Layer {
    std::vector<int64_t> multipliers;  // [max_ngram]
    std::vector<int64_t> primes;       // [columns]
    std::vector<int64_t> first_rows;   // [columns], the sum of the primes before
  };
  void hash_window(const Window& window, int64_t* rows) const;

  std::vector<int32_t> token_map_;
  std::vector<Layer> layers_;
  int64_t max_ngram_, heads_, columns_;
  int64_t pad_;  // compressed
};

}  // namespace hyperparallel::models::deepseek_v41
