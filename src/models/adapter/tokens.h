// The tokens of a micro-batch as one rank of a layout holds them: which are its own, where their documents begin. Host
// arithmetic, the same on every rank; nothing communicates here.
#pragma once

#include "base/aten.h"

#include <cstdint>
#include <vector>

#include "engine/executor.h"
#include "models/adapter/builder.h"
#include "models/adapter/shards.h"

namespace hyperparallel::models {

at::Tensor tensor_of(const std::vector<int64_t>& values);  // int64 [values]

class RankTokens {
 public:
  // `borders` [documents + 1]: of the documents, from 0 to the number of tokens, not falling. `before` [documents]: tokens of
  // each that earlier runs had; empty: none. Throws InternalError for other borders.
  RankTokens(std::vector<int64_t> borders, const engine::Layout& layout, std::vector<int64_t> before = {});

  int64_t tokens() const { return borders_.back(); }
  int64_t documents() const { return static_cast<int64_t>(borders_.size()) - 1; }
  int64_t border(int64_t document) const { return borders_[document]; }
  int64_t length(int64_t document) const { return border(document + 1) - border(document); }
  int64_t before(int64_t document) const { return before_[document]; }
  int64_t document(int64_t token) const { return document_of_[token]; }
  int64_t document_begin(int64_t token) const { return border(document(token)); }
  int64_t position(int64_t token) const { return before(document(token)) + token - document_begin(token); }

  const TokenShards& shards() const { return shards_; }
  int cp_rank() const { return cp_rank_; }
  const std::vector<int64_t>& own() const { return shards_.tokens(cp_rank_); }  // tokens of this cp rank, ascending
  const std::vector<int64_t>& tp_rows() const { return tp_rows_; }              // how many of them each tp rank has
  const std::vector<int64_t>& shard() const { return shard_; }                  // those of this tp rank

  // Fills the token inputs of this rank. `ids` and `targets`: int64 [tokens], of all; no targets where the program has no loss.
  void put(engine::ValueMap& map, const TokenInputs& inputs, const at::Tensor& ids, const at::Tensor& targets) const;

 private:
  std::vector<int64_t> borders_, before_, document_of_;
  TokenShards shards_;
  int cp_rank_;
  std::vector<int64_t> tp_rows_, shard_;
};

}  // namespace hyperparallel::models
