// DeepSeek-V4.1 as a program of segments and exchanges (spec/backbone.md, spec/facts.md 2).
//
// The program of a text layer i, value names in backticks:
//   engram      `layers.i.engram_out`                       where the layer has one
//   hc_attn.in  coefficients, normalised input              `layers.i.hc_attn.pre|post|comb|x`
//   kv          window and compressed KV, index keys        exchanges over cp start
//   queries     `layers.i.q`, index queries                 exchanges end
//   select      `layers.i.topk`, candidates                 index sources only
//   attend      `layers.i.attn_out`
//   hc_attn.out `layers.i.mid`
//   hc_ffn.in   as hc_attn.in
//   route       experts, weights, order of rows             exchange over ep
//   experts                                                 exchange back
//   combine     `layers.i.ffn_out`
//   hc_ffn.out  `layers.i.streams`
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "engine/executor.h"
#include "engine/program.h"
#include "models/deepseek_v41/batch.h"
#include "models/deepseek_v41/config.h"

namespace hyperparallel::models::deepseek_v41 {

struct ProgramOptions {
  int64_t attention_chunk = 128;             // queries per chunk of the reference attention
  int64_t index_chunk_elements = 8 << 20;    // score elements over all heads that the indexer holds at once
  int64_t cross_entropy_chunk = 1024;        // rows per chunk of the vocabulary cross-entropy
  bool patch_gradient = false;               // derive for the patches too (checks)
};

// Inputs of the program, by name; see inputs.cpp for what each holds.
struct ModelInputs {
  engine::ValueId ids, targets, positions, document_start, image, closed, padding;
  struct Groups {
    engine::ValueId first, count, tokens, positions;
  };
  std::map<int64_t, Groups> groups;  // by compression ratio
  engine::ValueId engram_rows;
  engine::ValueId patches, patch_rows, patch_columns, image_patches, unshuffle, span_source, span_index;
  engine::ValueId cotangent;  // of a vision-only program
};

struct ModelProgram {
  ModelConfig config;
  ProgramOptions options;
  ModelInputs inputs;
  engine::Program program;
};

// The whole model with its loss: one loss value, the sum of the cross-entropies of the scored tokens.
ModelProgram build_program(const ModelConfig& config, const ProgramOptions& options);
// The vision tower alone; its loss is sum(span_embeddings * cotangent).
ModelProgram build_vision_program(const ModelConfig& config, const ProgramOptions& options);

// Every program input of one micro-batch. Throws InternalError when the batch contradicts itself.
// `math`: the type of positional tables and coefficients; `compute`: the type of the patches.
engine::ValueMap prepare_inputs(const ModelProgram& model, const ModelBatch& batch, at::ScalarType compute);

}  // namespace hyperparallel::models::deepseek_v41
