#include "models/deepseek_v41/prefix.h"

#include <algorithm>

#include "base/error.h"

namespace hyperparallel::models::deepseek_v41 {

int64_t KeptRows::kept(const TextConfig& text, int64_t length) const {
  switch (kind) {
    case Kind::kWindow:
      return std::min(length, text.sliding_window - 1);
    case Kind::kGroups:
      return length / ratio;
    case Kind::kGroupInputs:
      return length % ratio;
  }
  throw InternalError("rows of an unknown kind");
}

int64_t KeptRows::added(int64_t length, int64_t tokens) const {
  return kind == Kind::kGroups ? (length + tokens) / ratio - length / ratio : tokens;
}

int64_t Prefix::pool_rows(const ModelInputs& inputs, size_t kept) const {
  for (size_t i = 0; i < pools.size(); ++i) {
    if (inputs.continued[i].kept == kept) return pools[i].size(0);
  }
  return 0;
}

Prefix advance(const ModelProgram& model, const Prefix& before, const ModelBatch& batch, const engine::ValueMap& outputs) {
  const ModelInputs& in = model.inputs;
  Prefix after = before;
  const at::Tensor borders = batch.cu_seqlens.contiguous();
  const int64_t* border = borders.const_data_ptr<int64_t>();
  for (Prefix::Sequence& sequence : after.sequences) sequence.ends.resize(in.kept.size());
  for (size_t k = 0; k < in.kept.size(); ++k) {
    int64_t end = 0;
    for (size_t d = 0; d < after.sequences.size(); ++d) {
      const int64_t length = after.sequences[d].length;
      end += in.kept[k].kept(model.config.text, length) + in.kept[k].added(length, border[d + 1] - border[d]);
      after.sequences[d].ends[k] = end;
    }
  }
  for (size_t d = 0; d < after.sequences.size(); ++d) after.sequences[d].length += border[d + 1] - border[d];
  after.pools.clear();
  for (const ContinuedRows& rows : in.continued) after.pools.push_back(outputs.at(rows.all.index));
  return after;
}

}  // namespace hyperparallel::models::deepseek_v41
