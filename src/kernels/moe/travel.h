// How rows travel between the ranks that have a layer's experts, in one direction and back: which leave, which come, and the
// exchanges that carry them. Internal to mega.cpp.
//
// Every rank's experts are cut into parts, and an exchange carries the rows for one part of each rank's: its experts begin while
// the next one is on its way. Rows of a rank's own experts do not travel.
#pragma once

#include <optional>
#include <vector>

#include "kernels/moe/mega.h"

namespace hyperparallel::kernels::moe {

class Travel {
 public:
  struct Part {
    std::vector<int64_t> to, from;  // rows by rank: that leave, that come
    std::vector<int32_t> leaving;   // of this rank's sorted rows, in the order in which they leave
    int64_t coming = 0;             // rows
    at::Tensor there, back;         // what came: [coming, ...] on the way to the experts, [leaving, ...] on the way back
    std::optional<dist::Pending> under_way;
  };

  // offsets: int64 [experts + 1], of this rank's sorted rows.
  Travel(const Peers& peers, const int64_t* offsets);

  const std::vector<Part>& parts() const { return parts_; }
  int64_t first_own() const { return first_own_; }  // the first of this rank's experts
  // Of own expert `e`: its part, and where in what comes with it its rows lie, by rank.
  int part_of(int64_t e) const { return part_of_[e]; }
  const std::vector<int32_t>& arrivals(int64_t e) const { return arrivals_[e]; }

  // These start an exchange of rows [leaving, n] or [coming, n]. All ranks make these calls in the same order.
  void send(int part, const at::Tensor& rows) { start(part, rows, false); }
  void send_back(int part, const at::Tensor& rows) { start(part, rows, true); }
  // Whether what was started last for this part has come; then it is in `there` or `back`. Throws PeerError.
  bool has_come(int part);

 private:
  void start(int part, const at::Tensor& rows, bool is_back);

  const Peers& peers_;
  int64_t first_own_;
  std::vector<Part> parts_;
  std::vector<int> part_of_;
  std::vector<std::vector<int32_t>> arrivals_;
};

}  // namespace hyperparallel::kernels::moe
