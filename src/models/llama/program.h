// Llama as a program of segments and exchanges.
//
// The program of layer i, value names in backticks:
//   attn_norm   `layers.i.attn.x`                                  entered by all tp ranks
//   kv          keys and values of the rank's key heads            exchange over cp starts
//   queries     `layers.i.attn.q`                                  exchange ends
//   attend      `layers.i.attn_out`                                summed over tp
//   attn_add    `layers.i.mid`
//   mlp_norm    `layers.i.mlp.x`                                   entered by all tp ranks
//   mlp         `layers.i.mlp_out`                                 summed over tp
//   mlp_add     `layers.i.hidden`
// Norms and sums compute in the region `streams`, all else in `tokens`: NOTE [Regions] in models/adapter/builder.h.
#pragma once

#include "models/adapter/builder.h"
#include "models/llama/config.h"

namespace hyperparallel::models::llama {

// Program inputs; all int64.
struct LlamaInputs : TokenInputs {
  engine::ValueId first_key, own_key;  // by token: rows, among the keys of all tokens, of its document's first token and itself
  engine::ValueId cp_rows;             // tokens of each cp rank
  engine::ValueId key_order;           // balanced shards: the gathered row of each token; else not valid
};

struct LlamaProgram {
  LlamaInputs inputs;
  engine::Program program;
};

// Throws ConfigError where a degree of the layout does not fit.
LlamaProgram build_program(const LlamaConfig& config, const ProgramOptions& options, double std);
// Fills the footprints of all segments: footprints.cpp.
void declare_footprints(engine::Program& program, const LlamaConfig& config, const engine::Layout& layout);

}  // namespace hyperparallel::models::llama
