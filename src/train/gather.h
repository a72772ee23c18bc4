// Tensors that lie over the ranks of a run, put together whole on every rank: for checks, not for training.
#pragma once

#include "base/aten.h"

#include <string>
#include <vector>

#include "dist/group.h"
#include "engine/parameter.h"

namespace hyperparallel::train {

// `own` [rows.size(), ...]: this rank's rows of a whole, whose numbers are `rows`; the ranks of the group have every row once.
// Integers [rows, k] may differ in k: short rows are filled up with -1, which stands for no choice. Collective.
at::Tensor gather_rows(dist::Group& group, const at::Tensor& own, const std::vector<int64_t>& rows, const std::string& label);

// The whole of a parameter, or of its gradient, from the parts that ranks own (engine/layout.h). `world`: the group of all ranks
// of `layout`. Collective.
at::Tensor gather_parameter(dist::Group& world, const engine::Layout& layout, const engine::ParameterSpec& spec,
                            const at::Tensor& owned);

}  // namespace hyperparallel::train
