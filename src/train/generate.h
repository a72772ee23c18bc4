// Token-by-token generation: prompts in, chosen tokens out; many sequences of any lengths in one run of the model.
//
// A run takes the newest token of every sequence under way and, whole, as many waiting prompts as there is room for. The model is
// the same program of segments as in training, built with a prefix (models/deepseek_v41/prefix.h).
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "engine/executor.h"
#include "models/deepseek_v41/engram_hash.h"
#include "models/deepseek_v41/prefix.h"

namespace hyperparallel::train {

struct Prompt {
  std::vector<int64_t> ids;           // at least one
  std::vector<uint8_t> image;         // per token, not 0 where it belongs to an image span; empty: nowhere
  std::vector<int64_t> image_starts;  // index of the START token of each image
  at::Tensor patches;                 // [patches of all images, 3 * patch * patch]; undefined: no images
  at::Tensor grids;                   // int64 [images, 2]: rows and columns of patches
};

struct GenerateOptions {
  int64_t max_new_tokens = 256;
  std::vector<int64_t> stop_ids;  // a sequence ends with the first of them
  double temperature = 0.0;       // 0: the likeliest token, the smaller id among equals
  double top_p = 1.0;             // draw among the fewest tokens that hold this share
  uint64_t seed = 0;
  int64_t max_sequences = 256;     // under way at once
  int64_t tokens_per_run = 16384;  // waiting prompts join a run up to this many tokens; one always may
};

class Generator {
 public:
  // `parameters` holds the parameters of build_program(config) and must outlive the generator, as must `hasher`, which a model
  // with Engram layers needs. Of `program` all but `cached` counts: how the segments are computed.
  Generator(const models::deepseek_v41::ModelConfig& config, engine::ParameterStore& parameters,
            const models::deepseek_v41::EngramHasher* hasher, GenerateOptions options,
            models::deepseek_v41::ProgramOptions program = {});

  // Queues a prompt; returns the number of its sequence: 0, 1, 2 ... in the order of calls.
  int64_t add(Prompt prompt);
  bool idle() const { return active_.empty() && waiting_.empty(); }
  size_t waiting() const { return waiting_.size(); }

  struct Token {
    int64_t sequence;
    int64_t id;
    bool last;  // a stop id, or the last of max_new_tokens
  };
  // One run of the model: one new token for every sequence that takes part. Random draws depend on seed, sequence number and
  // position alone, so the other sequences of a run have no say in them.
  std::vector<Token> step();
  // Logits of the last step, FP32 [tokens, vocabulary], in the order of its tokens.
  const at::Tensor& logits() const { return logits_; }

 private:
  struct Sequence {
    int64_t number;
    Prompt fresh;  // what the model has not seen yet: the prompt, then the newest token
    int64_t made = 0;
    models::deepseek_v41::EngramHasher::Window window;
  };
  void admit();
  models::deepseek_v41::ModelBatch make_batch();

  GenerateOptions options_;
  models::deepseek_v41::ModelProgram model_;
  engine::ParameterStore& parameters_;
  const models::deepseek_v41::EngramHasher* hasher_;
  engine::Executor executor_;
  std::vector<engine::Action> schedule_;
  std::deque<Sequence> waiting_;
  std::vector<Sequence> active_;  // active_[i] continues prefix_.sequences[i]
  models::deepseek_v41::Prefix prefix_;
  at::Tensor logits_;
  int64_t added_ = 0;
};

// The token to take at `position` (0: the first of a sequence) given its logits, FP32 [vocabulary].
int64_t choose_token(const at::Tensor& logits, const GenerateOptions& options, int64_t sequence, int64_t position);

}  // namespace hyperparallel::train
