// Shared by the files that add the model's segments to the program. Each `add_*` appends segments in forward order, declares the
// parameters they use, and returns the values that later segments read.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "models/deepseek_v41/program.h"

namespace hyperparallel::models::deepseek_v41 {

// Rotary tables as values: cos and sin [tokens, rope / 2].
struct RopeValues {
  engine::ValueId cos, sin;
};

// What a KV source published, as its consumers read it. Invalid ids: nothing of the kind.
struct PublishedKv {
  engine::ValueId compressed;  // [groups, head_dim], gathered over cp
  engine::ValueId index_keys;  // [groups, index_head_dim], gathered over cp
};

// How a parameter is cut over the ranks of an axis; an empty axis: not at all.
struct Cut {
  std::string axis = {};
  int64_t dim = 0;
};
inline const Cut kByHead{"tp", 0};    // output features, by head or by group
inline const Cut kByInput{"tp", 1};   // input features; outputs are partial sums
inline const Cut kByWord{"tp", 0};    // rows of the vocabulary
inline const Cut kByExpert{"ep", 0};  // stacked experts, rows of Engram tables

struct ModelBuilder {
  engine::ProgramBuilder program;
  const ModelConfig& config;
  const ProgramOptions& options;
  ModelInputs inputs;

  RopeValues rope_main, rope_compress;           // of token positions
  std::map<int64_t, RopeValues> rope_of_groups;  // by ratio, of group positions
  // Shared state of CSA2: the newest source of each kind.
  PublishedKv published;
  engine::ValueId topk;        // of the newest index source
  engine::ValueId candidates;  // of the candidate source, once it was passed

  bool partial = false;  // the region's gradients are parts over tp, NOTE [Regions]

  const TextConfig& text() const { return config.text; }
  const engine::Layout& layout() const { return options.layout; }
  // Rows of the residual streams: "tokens" or "shard".
  const char* stream_rows() const { return layout().sequence_parallel ? "shard" : "tokens"; }
  // A rank's part of what tp or ep cuts.
  int64_t local(int64_t total, const Cut& cut) const { return layout().part(total, cut.axis); }

  // Declares a parameter of the region's kind, with its whole shape. Names are the released ones.
  engine::ParameterId parameter(engine::ParameterSpec spec, const Cut& cut = {});
  engine::ParameterId weight(const std::string& name, std::vector<int64_t> shape,
                             const Cut& cut = {});  // normal start, used through engine/weight.h
  engine::ParameterId leaf(const std::string& name, std::vector<int64_t> shape, engine::Initialiser start);
  engine::ParameterId master_leaf(const std::string& name, std::vector<int64_t> shape, engine::Initialiser start,
                                  const Cut& cut = {});                            // computes in FP32
  engine::ParameterId gain(const std::string& name, int64_t size);                 // ones
  engine::ParameterId state(const std::string& name, std::vector<int64_t> shape);  // zeros, no gradient
  double std() const;
};

std::string layer_name(int64_t layer);       // "layers.3", of values
std::string layer_parameter(int64_t layer);  // "model.layers.3."

// Declares the inputs; `vision` and `text` say which parts are built.
void add_inputs(ModelBuilder& builder, bool text, bool vision);
void add_rope_tables(ModelBuilder& builder);
// `fresh` [rows of this run, width] behind the rows that sequences kept of earlier runs; `fresh` itself unless the program is
// cached.
engine::ValueId add_continued(ModelBuilder& builder, engine::ValueId fresh, KeptRows::Kind kind, int64_t ratio = 0);

// Borders of regions, NOTE [Regions]; each gives the value as the other side needs it.
// From the streams to all tokens of the cp rank, and back: what leaves is a part of a sum over tp.
engine::ValueId enter_tokens(ModelBuilder& builder, const std::string& name, engine::ValueId x);
engine::ValueId leave_tokens(ModelBuilder& builder, const std::string& name, engine::ValueId partial);
// From the streams to the tp rank's part of the tokens, and back.
engine::ValueId enter_shard(ModelBuilder& builder, const std::string& name, engine::ValueId x);
engine::ValueId leave_shard(ModelBuilder& builder, const std::string& name, engine::ValueId x);
// Own rows that other cp ranks need go to them: makes `received`, still to be awaited.
engine::ValueId launch_halo(ModelBuilder& builder, const std::string& name, const std::string& axis, engine::ValueId own,
                            const ModelInputs::Halo& halo);

// Vision tower, aligner and spans: returns `span_embeddings` of the rank's pictures, [span tokens, hidden].
engine::ValueId add_vision(ModelBuilder& builder);
// Token embedding, spans merged in, copied to all streams: returns streams [streams' rows, n, hidden].
engine::ValueId add_embedding(ModelBuilder& builder, engine::ValueId spans);

// One site of mHC. `in` makes the sublayer's normalised input and the coefficients; `out` writes the sublayer's output back.
struct MixSite {
  engine::ValueId pre, post, comb;
  engine::ValueId x;  // [tokens, hidden], normalised input of the sublayer
};
// `pre` is what the previous site made (NOTE in mhc.cpp). `kind`: "attn" or "ffn".
MixSite add_mix_in(ModelBuilder& builder, int64_t layer, const std::string& kind, engine::ValueId streams, engine::ValueId pre);
engine::ValueId add_mix_out(ModelBuilder& builder, int64_t layer, const std::string& kind, const std::string& result,
                            const MixSite& site, engine::ValueId y, engine::ValueId streams);

engine::ValueId add_engram(ModelBuilder& builder, int64_t layer, engine::ValueId streams);  // -> streams
engine::ValueId add_attention(ModelBuilder& builder, int64_t layer, engine::ValueId x);     // -> [tokens, hidden]
engine::ValueId add_moe(ModelBuilder& builder, int64_t layer, engine::ValueId x);           // -> [tokens, hidden]
void add_head(ModelBuilder& builder, engine::ValueId streams, engine::ValueId pre);         // final norm, loss

}  // namespace hyperparallel::models::deepseek_v41
