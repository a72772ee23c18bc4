// Llama as a family of models: decoders with grouped-query attention, a dense gated feed-forward and rotary positions. It is the
// example of docs/adding-a-model.md.
#pragma once

#include "models/adapter/family.h"

namespace hyperparallel::models::llama {

Family family();

}  // namespace hyperparallel::models::llama
