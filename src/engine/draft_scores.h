// How well draft layers foretell the model: the vocabulary's part of their losses (DSpark, docs/model.md, Draft layers), with
// weights as segments see them (weight.h).
#pragma once

#include "engine/weight.h"

namespace hyperparallel::engine {

struct DraftScores {
  at::Tensor loss;           // scalar, differentiable in hidden, states and the state head
  at::Tensor cross_entropy;  // [rows] of the target; this and the rest constant, and 0 for rows that are not scored
  at::Tensor distance;       // [rows] sum over the words of |p - p_model|
  at::Tensor hit;            // [rows] 1 where the likeliest word is the target
};

// Logits are hidden @ head^T + states @ state_head^T; those of the model itself, constant, model_hidden @ head^T; p, p_model
// their softmax. loss = sum over rows of weights * (cross_entropy_weight * cross_entropy + distance_weight * distance). hidden,
// model_hidden [rows, width]; states [rows, rank]; targets int64 [rows], negative: not scored; weights [rows] in the math type;
// head [words, width] gets no gradient here; state_head [words, rank]. Equal on all ranks of the part's group, as are the
// results; gradients are this rank's part of a sum over it. At most `chunk` rows' logits are held at once, formed and derived in
// forward; backward only scales. Communicates in forward, twice for each chunk.
struct DraftLossWeights {
  double cross_entropy = 0, distance = 0;
};
DraftScores draft_scores(const at::Tensor& hidden, const at::Tensor& states, const at::Tensor& model_hidden,
                         const at::Tensor& targets, const at::Tensor& weights, const Weight& head, const Weight& state_head,
                         const DraftLossWeights& loss, int64_t chunk, const VocabularyPart& part = {});

// What draft layers propose behind tokens `first`, one word after another: the stack runs once, and each slot adds the state of
// the word before it. hidden, normed [drafts, slots, width] of the last block, before and behind its norm; first int64 [drafts];
// whole tables head [words, width], state_of and state_head [words, rank]; projection [1, width + rank] in the math type.
struct GreedyDraft {
  at::Tensor ids;         // int64 [drafts, slots + 1], from `first` on
  at::Tensor logits;      // [drafts, slots, words] in the math type
  at::Tensor confidence;  // [drafts, slots], a logit
};
GreedyDraft greedy_draft(const at::Tensor& hidden, const at::Tensor& normed, const at::Tensor& first, const at::Tensor& head,
                         const at::Tensor& state_of, const at::Tensor& state_head, const at::Tensor& projection);

}  // namespace hyperparallel::engine
