#include "models/adapter/tokens.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace hyperparallel::models {

at::Tensor tensor_of(const std::vector<int64_t>& values) {
  return at::tensor(values, at::kLong);
}

RankTokens::RankTokens(std::vector<int64_t> borders, const engine::Layout& layout, std::vector<int64_t> before)
    : borders_(std::move(borders)),
      before_(std::move(before)),
      document_of_(borders_.back()),
      shards_(borders_.back(), layout),
      cp_rank_(layout.coordinate("cp")) {
  HP_CHECK(borders_.front() == 0, "document borders begin at {}", borders_.front());
  before_.resize(documents(), 0);
  for (int64_t d = 0; d < documents(); ++d) {
    HP_CHECK(border(d) <= border(d + 1), "document {} ends before it starts", d);
    std::fill(document_of_.begin() + border(d), document_of_.begin() + border(d + 1), d);
  }
  tp_rows_ = engine::even_parts(static_cast<int64_t>(own().size()), layout.size("tp"));
  const auto first = own().begin() + std::accumulate(tp_rows_.begin(), tp_rows_.begin() + layout.coordinate("tp"), int64_t{0});
  shard_ = {first, first + tp_rows_[layout.coordinate("tp")]};
}

void RankTokens::put(engine::ValueMap& map, const TokenInputs& inputs, const at::Tensor& ids, const at::Tensor& targets) const {
  HP_CHECK(ids.size(0) == tokens(), "document borders end at {}, the batch at {}", tokens(), ids.size(0));
  const at::Tensor mine = tensor_of(own());
  map[inputs.ids.index] = ids.index_select(0, mine);
  if (inputs.targets.valid()) map[inputs.targets.index] = targets.index_select(0, mine);
  std::vector<int64_t> positions;
  for (int64_t token : own()) positions.push_back(position(token));
  map[inputs.positions.index] = tensor_of(positions);
  map[inputs.tp_rows.index] = tensor_of(tp_rows_);
}

}  // namespace hyperparallel::models
