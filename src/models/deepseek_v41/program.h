// DeepSeek-V4.1 as a program of segments and exchanges (docs/model.md).
//
// The program of a text layer i, value names in backticks:
//   engram      `layers.i.engram_out`                       where the layer has one; rows come over ep
//   hc_attn.boundary  the streams that enter               `layers.i-1.streams`, written
//               coefficients, normalised input              `layers.i.hc_attn.pre|post|comb|x`
//   kv          window and compressed KV, index keys        exchanges over cp start
//   queries     `layers.i.q`, index queries                 exchanges end
//   select      `layers.i.topk`, candidates                 index sources only
//   teach       index scores against attention              index sources, with the indexer's loss
//   attend      `layers.i.attn_out`                         summed over tp
//   hc_ffn.boundary  `layers.i.mid`, then as hc_attn
//   route       experts, weights, order of rows             exchange over ep
//   experts                                                 exchange back
//   combine     `layers.i.ffn_out`
//   hc_ffn.out  `layers.i.streams`                          where others than the next layer's hc_attn.boundary read them (the
//                                                           head, engram, draft layers); that layer has hc_attn.in then
//
// Attention and vocabulary compute in the region `tokens`, MoE and Engram in `shard`, mHC and norms in `streams`: NOTE [Regions]
// in models/adapter/builder.h.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/executor.h"
#include "engine/layout.h"
#include "engine/program.h"
#include "models/adapter/builder.h"
#include "models/deepseek_v41/batch.h"
#include "models/deepseek_v41/config.h"

namespace hyperparallel::models::deepseek_v41 {

struct Prefix;  // prefix.h

struct ProgramOptions : models::ProgramOptions {
  // Every document continues a sequence whose earlier tokens left a Prefix (prefix.h); logits instead of a loss. Forward only.
  bool cached = false;
  bool patch_gradient = false;  // derive for the patches too (checks)
};

// Rows of one kind that a sequence keeps for its later tokens (cached programs).
struct KeptRows {
  enum class Kind {
    kWindow,       // window KV of the last window - 1 tokens
    kGroups,       // compressed KV and index keys of every group of `ratio` tokens
    kGroupInputs,  // compressor inputs of the tokens after the last whole group
  } kind = Kind::kWindow;
  int64_t ratio = 0;
  engine::ValueId gather{};  // int64 [all rows]: which rows of [past; new] the documents see, document after document
  // Rows that a sequence of `length` tokens keeps.
  int64_t kept(const TextConfig& text, int64_t length) const;
  // Rows that tokens `length` .. `length + tokens - 1` add.
  int64_t added(int64_t length, int64_t tokens) const;
};
// One tensor of such rows: `past` comes in, `all` = [past; new] gathered goes out and is the next run's past.
struct ContinuedRows {
  size_t kept;  // index in ModelInputs::kept
  engine::ValueId past, all;
};

// Inputs of the program, by name; see inputs.cpp for what each holds. Where a program has no use for one, its id is not valid.
struct ModelInputs : TokenInputs {
  engine::ValueId document_start, key_row;     // of all tokens of the cp rank
  engine::ValueId image, closed, padding;      // of the tp rank's part of them
  engine::ValueId sequence, sequence_lengths;  // with the balance loss
  engine::ValueId counted;                     // with the indexer's loss
  Halo window;
  engine::ValueId window_rows;
  struct Groups {
    engine::ValueId first, count, tokens, positions;
    Halo halo;
    engine::ValueId rows, order;
  };
  std::map<int64_t, Groups> groups;  // by compression ratio
  struct Engram {
    engine::ValueId rows, send_rows, found;
    std::string axis;             // that send_rows counts over
    engine::ParameterId table{};  // where rows stay with their owners
  };
  std::vector<Engram> engram;  // by Engram layer
  // Pictures, NOTE [Pictures over ranks] in pictures.h. `patches` are those of the rank's own micro-batch that it sends.
  engine::ValueId patches, patch_send_rows, patch_receive_rows;
  engine::ValueId patch_rows, patch_columns, image_patches, patch_parts, head_send_rows, head_receive_rows;
  Halo neighbours;
  engine::ValueId unshuffle, span_source, span_index;
  Halo spans;
  engine::ValueId cotangent;  // of a vision-only program
  struct Draft {
    engine::ValueId ids, previous, targets, slots, positions, slots_of_block, tp_rows, image, padding;
    Halo window, model_hidden;
    engine::ValueId window_rows, key_row, key_start, model_rows;
    // Of a program of draft layers alone: what they would read of the model.
    std::vector<engine::ValueId> target_streams;  // [shard or tokens, n, hidden], by target layer
    engine::ValueId final_hidden;                 // [tokens, hidden]
  } draft;
  // Cached programs.
  std::vector<KeptRows> kept;
  std::vector<ContinuedRows> continued;
  engine::ValueId logit_rows;  // int64 [documents]: tokens whose logits are wanted, the last of each document
  engine::ValueId logits;      // FP32 [documents, vocabulary], an output
};

struct ModelProgram {
  ModelConfig config;
  ProgramOptions options;
  ModelInputs inputs;
  engine::Program program;
  std::vector<KernelCall> kernel_calls = {};
};

// The whole model with its losses: cross_entropy, and balance and indexer where the options weigh them. A cached program has the
// same parameters in the same order, and outputs in place of the loss; cp is 1 there. Throws ConfigError where a degree does not
// divide what it cuts.
ModelProgram build_program(const ModelConfig& config, const ProgramOptions& options);
// The vision tower alone; its loss is sum(span_embeddings * cotangent).
ModelProgram build_vision_program(const ModelConfig& config, const ProgramOptions& options);

// The draft layers alone, on given streams and final hidden states: their loss, and frozen vocabulary tables.
ModelProgram build_draft_program(const ModelConfig& config, const ProgramOptions& options);

// Every program input of one micro-batch for the rank of `model.options.layout`; `batch` is the whole micro-batch, the same on
// all ranks of a `sample` group. Throws InternalError when the batch contradicts itself. `compute`: the type of patches and of
// kept rows. `prefix`: what each document continues, for a cached program only.
engine::ValueMap prepare_inputs(const ModelProgram& model, const ModelBatch& batch, at::ScalarType compute,
                                const Prefix* prefix = nullptr);

// Which rows of a whole value a rank holds; the ranks of `axis` together have every row once.
struct HeldRows {
  std::string axis;
  std::vector<int64_t> rows;
};
// By the symbol of the rows. `tokens`, `shard` and `patches.sent` count in the order of the micro-batch, `groups.RATIO` in that
// of their tokens; `patches`, `aligned` and `span_tokens` in that of the pictures of all data-parallel ranks' micro-batches.
std::map<std::string, HeldRows> held_rows(const ModelProgram& model, const ModelBatch& batch);

}  // namespace hyperparallel::models::deepseek_v41
