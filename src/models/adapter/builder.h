// What a model's family builds its program with, beside engine::ProgramBuilder: parameters with their cuts, the borders between
// regions, the vocabulary. Each `add_*` appends segments in forward order and returns the values that later segments read.
//
// NOTE [Regions]: which tokens a rank works on, and what its gradients are.
//   tokens   all tokens of the cp rank, on every tp rank: attention (each tp rank has its heads), dense feed-forward (its
//   channels)
//            and vocabulary (its rows). What leaves is summed over tp; what a parameter without a cut gets as gradient there is a
//            part, to be summed over tp.
//   shard    a tp rank's part of these tokens: MoE, Engram. Gradients are parts here too.
//   streams  norms and residual sums: `tokens`, computed alike on all tp ranks with equal gradients, or with sequence parallelism
//            `shard`.
// A family sets `partial` when it enters a region, before it declares the region's parameters: true in `tokens` and `shard`,
// `layout().sequence_parallel` in `streams`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/layout.h"
#include "engine/program.h"

namespace hyperparallel::engine {
class SegmentRun;
}

namespace hyperparallel::models {

// How a parameter is cut over the ranks of an axis; an empty axis: not at all.
struct Cut {
  std::string axis = {};
  int64_t dim = 0;
};
inline const Cut kByHead{"tp", 0};    // output features, by head or by group
inline const Cut kByInput{"tp", 1};   // input features; outputs are partial sums
inline const Cut kByWord{"tp", 0};    // rows of the vocabulary
inline const Cut kByExpert{"ep", 0};  // stacked experts, rows of Engram tables

// Program inputs that every decoder has; RankTokens of tokens.h gives their values. All are int64.
struct TokenInputs {
  engine::ValueId ids, targets, positions;  // of all tokens of the cp rank; positions count within the document
  engine::ValueId tp_rows;                  // how many of these tokens each tp rank has
};

// What a rank sends of its own rows to other ranks of an axis, and receives (Fetch of shards.h).
struct Halo {
  engine::ValueId send_index, send_rows, receive_rows;
};

class DecoderBuilder {
 public:
  // `layout` must outlive the builder. `std`: of normal starts.
  DecoderBuilder(const engine::Layout& layout, double std) : layout_(layout), std_(std) {}

  engine::ProgramBuilder program;
  engine::ValueId tp_rows;  // of the TokenInputs
  bool partial = false;     // the region's gradients are parts over tp, NOTE [Regions]

  const engine::Layout& layout() const { return layout_; }
  double std() const { return std_; }
  // Rows of the residual streams: "tokens" or "shard".
  const char* stream_rows() const { return layout_.sequence_parallel ? "shard" : "tokens"; }
  // A rank's part of what tp or ep cuts.
  int64_t local(int64_t total, const Cut& cut) const { return layout_.part(total, cut.axis); }

  // Declares a parameter of the region's kind, with its whole shape. Names are those of a Hugging Face folder.
  engine::ParameterId parameter(engine::ParameterSpec spec, const Cut& cut = {});
  // Normal start, used through engine/weight.h.
  engine::ParameterId weight(const std::string& name, std::vector<int64_t> shape, const Cut& cut = {});
  engine::ParameterId leaf(const std::string& name, std::vector<int64_t> shape, engine::Initialiser start);
  // Computes in FP32.
  engine::ParameterId master_leaf(const std::string& name, std::vector<int64_t> shape, engine::Initialiser start,
                                  const Cut& cut = {});
  engine::ParameterId gain(const std::string& name, int64_t size);                 // ones
  engine::ParameterId state(const std::string& name, std::vector<int64_t> shape);  // zeros, no gradient

 private:
  const engine::Layout& layout_;
  double std_;
};

std::string layer_name(int64_t layer);       // "layers.3", of values
std::string layer_parameter(int64_t layer);  // "model.layers.3."

// `targets`: the program has a loss.
TokenInputs add_token_inputs(DecoderBuilder& builder, bool targets = true);

// Borders of regions, NOTE [Regions]; each gives the value as the other side needs it.
// From the streams to all tokens of the cp rank, and back: what leaves is a part of a sum over tp.
engine::ValueId enter_tokens(DecoderBuilder& builder, const std::string& name, engine::ValueId x);
engine::ValueId leave_tokens(DecoderBuilder& builder, const std::string& name, engine::ValueId partial);
// From the streams to the tp rank's part of the tokens, and back.
engine::ValueId enter_shard(DecoderBuilder& builder, const std::string& name, engine::ValueId x);
engine::ValueId leave_shard(DecoderBuilder& builder, const std::string& name, engine::ValueId x);

Halo add_halo_inputs(DecoderBuilder& builder, const std::string& name, const std::string& axis);
// Own rows that other ranks of the axis need go to them: makes `received`, still to be awaited.
engine::ValueId launch_halo(DecoderBuilder& builder, const std::string& name, const std::string& axis, engine::ValueId own,
                            const Halo& halo);

// A table with a row for each word, cut over tp: embedding, or head.
struct Vocabulary {
  engine::ParameterId table;     // [words, width]
  int64_t first = 0, words = 0;  // this rank's rows
};
Vocabulary add_vocabulary(DecoderBuilder& builder, const std::string& name, int64_t words, int64_t width);
// Inside a segment that declares the table: ids int64 [tokens] -> [tokens, width], zeros for words of other ranks and for
// negative ids. A part of a sum over tp.
at::Tensor look_up(engine::SegmentRun& run, const Vocabulary& vocabulary, const at::Tensor& ids);
// The segment `loss`, and the program's loss: the sum of the cross-entropies of the scored tokens of the cp rank. `hidden`: all
// tokens of the cp rank, [tokens, width]. `chunk`: rows whose logits are held at once.
void add_loss(DecoderBuilder& builder, const Vocabulary& head, engine::ValueId hidden, engine::ValueId targets, int64_t chunk);

}  // namespace hyperparallel::models
