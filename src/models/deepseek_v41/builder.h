// Shared by the files that add the model's segments to the program. Each `add_*` appends segments in forward order, declares the
// parameters they use, and returns the values that later segments read.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "models/adapter/builder.h"
#include "models/deepseek_v41/program.h"

namespace hyperparallel::models::deepseek_v41 {

// Rotary tables as values: cos and sin [tokens, rope / 2].
struct RopeValues {
  engine::ValueId cos, sin;
};

// What one layer's sites and experts are called, and how many experts it has.
struct Block {
  std::string name;        // of values: "layers.3"
  std::string parameters;  // prefix: "model.layers.3."
  int64_t experts = 0, top_k = 0;
};

// What a KV source published, as its consumers read it. Invalid ids: nothing of the kind.
struct PublishedKv {
  engine::ValueId compressed;  // [groups, head_dim], gathered over cp
  engine::ValueId index_keys;  // [groups, index_head_dim], gathered over cp
};

struct ModelBuilder : DecoderBuilder {
  ModelBuilder(const ModelConfig& config, const ProgramOptions& options);

  const ModelConfig& config;
  const ProgramOptions& options;
  ModelInputs inputs;

  RopeValues rope_main, rope_compress;           // of token positions
  std::map<int64_t, RopeValues> rope_of_groups;  // by ratio, of group positions
  Vocabulary embedding, head;
  // The head, whose logits those of the draft layers' Markov head are added to word by word: both lie alike.
  Vocabulary add_lm_head();
  std::string markov_head() const;             // its name; empty without draft layers
  std::vector<engine::ValueId> draft_targets;  // what the draft layers read of the model's layers
  // Shared state of CSA2: the newest source of each kind.
  PublishedKv published;
  engine::ValueId topk;        // of the newest index source
  engine::ValueId candidates;  // of the candidate source, once it was passed

  // What routers need to know of the rows of `rows.shard`; no `sequence`: no balance loss.
  struct RowKinds {
    engine::ValueId image, padding, sequence, sequence_lengths;
  };
  RowKinds row_kinds;

  // What the auxiliary losses are made of, by layer.
  struct RouterSums {
    engine::ValueId shares, counts;  // of the rank's tokens; of the whole sequences
  };
  std::vector<RouterSums> router_sums;
  std::vector<engine::ValueId> indexer_losses;

  // The implementation that a call takes; remembered for Model::kernel_calls.
  kernels::Implementation choose(const std::string& operation, const std::string& shape, kernels::Implementation fastest,
                                 const std::vector<kernels::Candidate>& candidates);
  std::vector<KernelCall> kernel_calls;

  const TextConfig& text() const { return config.text; }
  Block block(int64_t layer) const {
    return {layer_name(layer), layer_parameter(layer), config.text.n_routed_experts, config.text.num_experts_per_tok};
  }
  bool has_balance_loss() const { return !options.cached && options.losses.balance > 0; }
  bool has_draft_layers() const { return !options.cached && options.losses.draft.weight > 0; }
  bool has_indexer_loss() const { return !options.cached && options.losses.indexer > 0; }
};

// Declares the inputs; `vision` and `text` say which parts are built.
void add_inputs(ModelBuilder& builder, bool text, bool vision);
void add_rope_tables(ModelBuilder& builder);
// positions int64 [rows] -> the tables NAME.cos and NAME.sin.
RopeValues add_rope_table(ModelBuilder& builder, const std::string& name, engine::ValueId positions, const std::string& rows,
                          const RopeParameters& rope);
// `fresh` [rows of this run, width] behind the rows that sequences kept of earlier runs; `fresh` itself unless the program is
// cached.
engine::ValueId add_continued(ModelBuilder& builder, engine::ValueId fresh, KeptRows::Kind kind, int64_t ratio = 0);

// Vision tower, aligner and spans: returns `span_embeddings` of the rank's pictures, [span tokens, hidden].
engine::ValueId add_vision(ModelBuilder& builder);
// Token embedding, spans merged in, copied to all streams: returns streams [streams' rows, n, hidden].
engine::ValueId add_embedding(ModelBuilder& builder, engine::ValueId spans);

// The segment PREFIXcopy_to_streams: embedded [streams' rows, hidden] -> PREFIXstreams, a copy in each.
engine::ValueId copy_to_streams(ModelBuilder& builder, const std::string& prefix, engine::ValueId embedded);
// `pre` of the first site: one-hot on copy 0.
engine::ValueId add_first_mix(ModelBuilder& builder, const std::string& name, engine::ValueId streams);

// One site of mHC. `in` makes the sublayer's normalised input and the coefficients; `out` writes the sublayer's output back;
// `boundary` is an `out` and the next site's `in` at once.
struct MixSite {
  engine::ValueId pre, post, comb;
  engine::ValueId x;  // [tokens, hidden], normalised input of the sublayer
};
// `pre` is what the previous site made (NOTE in mhc.cpp). `kind`: "attn" or "ffn".
MixSite add_mix_in(ModelBuilder& builder, const Block& block, const std::string& kind, engine::ValueId streams,
                   engine::ValueId pre);
struct MixBoundary {
  engine::ValueId streams;
  MixSite site;  // of `kind`
};
// `result`: the name of the new streams.
MixBoundary add_mix_boundary(ModelBuilder& builder, const Block& block, const std::string& result, const MixSite& from,
                             engine::ValueId y, engine::ValueId streams, const std::string& kind);

// Between two blocks: streams that are written, or what the last sublayer of a block still writes into them, which the next block
// does with the `in` of its first site.
struct BlockBorder {
  engine::ValueId streams, pre;
  struct Unwritten {
    std::string result;
    MixSite site;
    engine::ValueId y;
  };
  std::optional<Unwritten> unwritten = {};
};
// `writes`: somebody else than a block's first site reads the streams.
BlockBorder leave_block(ModelBuilder& builder, const Block& block, const MixSite& ffn, engine::ValueId ffn_out,
                        engine::ValueId mid, bool writes);
// The streams and the site of the block's attention.
MixBoundary enter_block(ModelBuilder& builder, const Block& block, const BlockBorder& border);

// Fills the footprints of all segments: footprints.cpp.
void declare_footprints(engine::Program& program, const ModelConfig& config, const ProgramOptions& options);

engine::ValueId add_engram(ModelBuilder& builder, int64_t layer, engine::ValueId streams);  // -> streams
engine::ValueId add_attention(ModelBuilder& builder, int64_t layer, engine::ValueId x);     // -> [tokens, hidden]
engine::ValueId add_moe(ModelBuilder& builder, const Block& block, engine::ValueId x);      // -> [tokens, hidden]
// Final norm and loss; -> final hidden states [tokens, hidden] of the region `tokens`.
engine::ValueId add_head(ModelBuilder& builder, engine::ValueId streams, engine::ValueId pre);
// The streams that enter one of the draft layers' target layers; then, once all were, the draft layers with their loss.
void add_draft_target(ModelBuilder& builder, engine::ValueId streams);
void add_draft_layers(ModelBuilder& builder, engine::ValueId final_hidden);
at::Tensor slot_weights(const at::Tensor& slots, double decay, at::ScalarType type);  // exp(-slots / decay); 0: ones
void add_auxiliary_losses(ModelBuilder& builder);                                     // what layers left for them

}  // namespace hyperparallel::models::deepseek_v41
