#include "kernels/moe/travel.h"

#include <algorithm>

#include "base/error.h"

namespace hyperparallel::kernels::moe {
namespace {

constexpr int kParts = 2;

// Experts of part `part` of a rank's, counted from `first` to below `last`.
std::pair<int64_t, int64_t> experts_of(const Peers& peers, int64_t rank, int part, int parts) {
  const int64_t first = peers.first_experts[rank], count = peers.first_experts[rank + 1] - first;
  return {first + count * part / parts, first + count * (part + 1) / parts};
}

}  // namespace

Travel::Travel(const Peers& peers, const int64_t* offsets) : peers_(peers) {
  const int ranks = peers.group->size(), own = peers.group->rank();
  first_own_ = peers.first_experts[own];
  const int64_t local = peers.first_experts[own + 1] - first_own_;
  HP_CHECK(static_cast<int>(peers.first_experts.size()) == ranks + 1, "experts of {} ranks", peers.first_experts.size() - 1);
  HP_CHECK(peers.counts.numel() == ranks * local, "{} counts of {} experts on {} ranks", peers.counts.numel(), local, ranks);
  const at::Tensor table = peers.counts.contiguous();
  const int64_t* counts = table.const_data_ptr<int64_t>();
  // All ranks have the same number of parts, of which small ranks leave some empty.
  int64_t most = 1;
  for (int rank = 0; rank < ranks; ++rank) most = std::max(most, peers.first_experts[rank + 1] - peers.first_experts[rank]);
  const int parts = static_cast<int>(std::min<int64_t>(kParts, most));
  parts_.resize(parts), part_of_.resize(local), arrivals_.resize(local);
  for (int p = 0; p < parts; ++p) {
    Part& part = parts_[p];
    part.to.assign(ranks, 0), part.from.assign(ranks, 0);
    const auto [first, last] = experts_of(peers, own, p, parts);
    for (int64_t e = first; e < last; ++e) part_of_[e - first_own_] = p;
    for (int rank = 0; rank < ranks; ++rank) {
      if (rank == own) continue;
      const auto [theirs, end] = experts_of(peers, rank, p, parts);
      part.to[rank] = offsets[end] - offsets[theirs];
      for (int64_t row = offsets[theirs]; row < offsets[end]; ++row) part.leaving.push_back(static_cast<int32_t>(row));
      for (int64_t e = first; e < last; ++e) {
        const int64_t rows = counts[rank * local + e - first_own_];
        part.from[rank] += rows;
        for (int64_t i = 0; i < rows; ++i) arrivals_[e - first_own_].push_back(static_cast<int32_t>(part.coming++));
      }
    }
  }
}

void Travel::start(int p, const at::Tensor& rows, bool is_back) {
  Part& part = parts_[p];
  HP_CHECK(!part.under_way, "part {} of {} travels already", p, peers_.label);
  part.under_way = is_back ? peers_.group->all_to_all(rows, part.from, part.to, peers_.label + ".returned")
                           : peers_.group->all_to_all(rows, part.to, part.from, peers_.label + ".rows");
  (is_back ? part.back : part.there) = at::Tensor();
}

bool Travel::has_come(int p) {
  Part& part = parts_[p];
  HP_CHECK(part.under_way, "part {} of {} does not travel", p, peers_.label);
  if (!part.under_way->is_ready()) return false;
  at::Tensor rows = part.under_way->wait();
  part.under_way.reset();
  (part.there.defined() ? part.back : part.there) = std::move(rows);
  return true;
}

}  // namespace hyperparallel::kernels::moe
