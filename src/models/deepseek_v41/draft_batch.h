// The blocks that draft layers are trained on: which positions of a micro-batch are anchors, and what the rows of their slots
// need. Host arithmetic, the same on every rank that shares the micro-batch.
#pragma once

#include "models/deepseek_v41/program.h"

namespace hyperparallel::models::deepseek_v41 {

// Positions that may be an anchor: text, with a token before it in its document and a target behind it. Where a document has more
// than `most` (0: no limit), so many of them, the same ones for the same document at the same place. int64 [anchors], ascending.
at::Tensor choose_anchors(const ModelBatch& batch, int64_t most);

// Sum of the weights of all scored slots of `batch.anchors`: a slot is scored that has a target in the document, as all slots
// before it have.
double draft_units(const TextConfig& text, const DraftLoss& loss, const ModelBatch& batch);

// The inputs ModelInputs::draft of this rank, but those of a program of draft layers alone.
void put_draft_inputs(const ModelProgram& model, const ModelBatch& batch, const RankTokens& tokens, engine::ValueMap& map);

// `draft.tokens` and `draft.shard` of held_rows (program.h): slots in the order of the anchors.
void add_draft_held(const ModelProgram& model, const ModelBatch& batch, const RankTokens& tokens,
                    std::map<std::string, HeldRows>& held);

}  // namespace hyperparallel::models::deepseek_v41
