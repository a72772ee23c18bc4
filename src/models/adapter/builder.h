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
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/layout.h"
#include "engine/program.h"

namespace hyperparallel::engine {
class SegmentRun;
}

namespace hyperparallel::models {

// The rows that a stack of layers works on, by symbol: all that the cp rank has, and the tp rank's part of them, NOTE [Regions].
struct RowSpace {
  std::string tokens = "tokens", shard = "shard";
  engine::ValueId tp_rows = {};  // int64 [tp]: how many rows each tp rank has
};

// How a parameter is cut over the ranks of an axis; an empty axis: not at all. `role` is its name in parallel.plan_overrides.
struct Cut {
  std::string axis = {};
  int64_t dim = 0;
  std::string role = "replicated";
};
inline const Cut kByHead{"tp", 0, "column"};     // output features, by head, group or channel
inline const Cut kByInput{"tp", 1, "row"};       // input features; outputs are partial sums
inline const Cut kByWord{"tp", 0, "vocab"};      // rows of the vocabulary
inline const Cut kByExpert{"ep", 0, "expert"};   // stacked experts
inline const Cut kByRow{"ep", 0, "table"};       // rows of a table that tokens ask for by number
inline const Cut kByOwner{"stage", 0, "owner"};  // likewise where each row stays with one rank (ParameterUse::kTable)

// NOTE [Roles]: a family declares every parameter with the cut that its segments compute with. Where it can compute with another
// one as well, it asks `way_of` before it builds, and builds what is asked for: a role is never only a label. An override that
// asks for a role that a parameter does not have in any way is refused.
struct RoleOverride {
  std::string match;  // glob over parameter names
  std::string role;
};

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
  // `layout` must outlive the builder. `std`: of normal starts. `trainable`: globs over the parameters that learn; empty: all do.
  DecoderBuilder(const engine::Layout& layout, double std, std::vector<RoleOverride> overrides = {},
                 std::vector<std::string> trainable = {})
      : layout_(layout), std_(std), overrides_(std::move(overrides)), trainable_(std::move(trainable)) {}

  engine::ProgramBuilder program;
  RowSpace rows;         // of what is being added
  bool partial = false;  // the region's gradients are parts over tp, NOTE [Regions]

  const engine::Layout& layout() const { return layout_; }
  double std() const { return std_; }
  const std::string& stream_rows() const { return layout_.sequence_parallel ? rows.shard : rows.tokens; }  // of residual streams
  // A rank's part of what tp or ep cuts.
  int64_t local(int64_t total, const Cut& cut) const { return cut.axis.empty() ? total : layout_.part(total, cut.axis); }

  // Which way parameters lie that only make sense together: `ways[w]` has a cut for each of `names`. The first way that has every
  // role which overrides ask for; the others follow. The first of all where nothing is asked. Call before declaring them.
  size_t way_of(const std::vector<std::string>& names, const std::vector<std::vector<Cut>>& ways);
  // Throws one ConfigError for all overrides and trainable globs that match no parameter, and for roles that one cannot have:
  // call at the end.
  void check_overrides();

  // Declares a parameter of the region's kind, with its whole shape. Names are those of a Hugging Face folder.
  engine::ParameterId parameter(engine::ParameterSpec spec, const Cut& cut = {});
  // Normal start, used through engine/weight.h.
  engine::ParameterId weight(const std::string& name, std::vector<int64_t> shape, const Cut& cut = {},
                             engine::UpdateHint update = engine::UpdateHint::matrix());
  engine::ParameterId leaf(const std::string& name, std::vector<int64_t> shape, engine::Initialiser start,
                           engine::UpdateHint update = engine::UpdateHint::vector());
  // Computes in FP32.
  engine::ParameterId master_leaf(const std::string& name, std::vector<int64_t> shape, engine::Initialiser start,
                                  engine::UpdateHint update = engine::UpdateHint::vector(), const Cut& cut = {});
  engine::ParameterId gain(const std::string& name, int64_t size);                 // ones
  engine::ParameterId state(const std::string& name, std::vector<int64_t> shape);  // zeros, no gradient

 private:
  const RoleOverride* override_of(const std::string& name);  // the first that matches

  const engine::Layout& layout_;
  double std_;
  std::vector<RoleOverride> overrides_;
  std::vector<std::string> trainable_;
  std::map<std::string, std::string> accepted_;  // what way_of offered, by name
  std::vector<std::string> names_, mistakes_;
  std::set<std::string> matched_;
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
// The name of the value that leaves a shard as `name`: with sequence parallelism it is that value.
std::string leaving_shard(const DecoderBuilder& builder, const std::string& name);

// Rows go by their counts as inputs `NAME.send_index` [NAME.sent], `NAME.send_rows` and `NAME.receive_rows` say.
Halo add_halo_inputs(DecoderBuilder& builder, const std::string& name, const std::string& axis);
// Own rows that other ranks of the axis need go to them: makes `received`, still to be awaited.
engine::ValueId launch_halo(DecoderBuilder& builder, const std::string& name, const std::string& axis, engine::ValueId own,
                            const Halo& halo);

// A table with a row for each word: embedding, or head. Cut over tp each rank has some rows; as a whole each looks up or scores
// its part of the tokens.
struct Vocabulary {
  engine::ParameterId table;     // [words, width]
  int64_t first = 0, words = 0;  // this rank's rows
  int64_t parts = 1, part = 0;   // of the tokens: how many, and which one is this rank's
};
// `together`: other tables of words that must lie as this one does.
Vocabulary add_vocabulary(DecoderBuilder& builder, const std::string& name, int64_t words, int64_t width,
                          engine::UpdateHint update = engine::UpdateHint::table(), const std::vector<std::string>& together = {});
// values [rows] with those of one of `parts` even parts of the rows, and `other` in place of the rest.
at::Tensor own_part(const at::Tensor& values, int64_t parts, int64_t part, int64_t other);
// Inside a segment that declares the table: ids int64 [tokens] -> [tokens, width], zeros for words or tokens of other ranks and
// for negative ids. A part of a sum over tp.
at::Tensor look_up(engine::SegmentRun& run, const Vocabulary& vocabulary, const at::Tensor& ids);
// The segment `loss`, and the program's loss: the sum of the cross-entropies of the scored tokens of the cp rank. `hidden`: all
// tokens of the cp rank, [tokens, width]. `chunk`: rows whose logits are held at once. `z`: weight of a z-loss, the squares of
// log(sum of exp of the logits); 0: none.
void add_loss(DecoderBuilder& builder, const Vocabulary& head, engine::ValueId hidden, engine::ValueId targets, int64_t chunk,
              double z);

}  // namespace hyperparallel::models
