// The work on tiles of rows of a layer's experts, which the plans of mega.cpp order. Internal to it.
//
// S: float, double or at::BFloat16, the type of rows; sums are in FP32 (FP64).
#pragma once

#include <vector>

#include "kernels/gemm/tile.h"
#include "kernels/moe/mega.h"
#include "kernels/moe/travel.h"

namespace hyperparallel::kernels::moe {

using gemm::Sum;

// One expert with its rows: those of this rank's tokens, then those of other ranks.
template <class S>
struct Group {
  const S *w1, *w3, *w2;
  Sum<S>*dw1 = nullptr, *dw3 = nullptr, *dw2 = nullptr;
  bool is_unset = false;  // of these
  int64_t width, own_rows;
  int64_t sorted = -1;                             // its first own row among this rank's sorted rows; -1: the shared expert
  const std::vector<int32_t>* arrivals = nullptr;  // rows of other ranks: where they lie in what came with their part
  int part = 0;
  S* hidden;  // [rows, 2 width]
  S *packed1 = nullptr, *packed3 = nullptr, *packed2 = nullptr;
  int64_t tiles = 0;
  S *act = nullptr, *dhidden = nullptr;  // [rows, width], [rows, 2 width]

  int64_t foreign_rows() const { return arrivals ? static_cast<int64_t>(arrivals->size()) : 0; }
  int64_t rows() const { return own_rows + foreign_rows(); }
  // The weights of an expert with a single tile are packed by its task, where they stay in the caches; others by tasks before.
  bool is_packed_before() const { return tiles > 1; }
};

struct Tile {
  int64_t group, first, rows;  // `first` counts from the group's first own row, or first row of other ranks
  bool foreign;
  bool is_first;  // of its group
};

// Memory of a worker, for the largest tile.
struct ScratchSizes {
  int64_t rows, d, width;
};
template <class S>
struct Scratch {
  std::vector<S> rows, hidden, act, columns, packed;
  std::vector<S> experts_weights;  // packed
  std::vector<Sum<S>> sums, weights, dweights;
  explicit Scratch(const ScratchSizes& most);
};

template <class S>
class Tiles {
 public:
  static constexpr int64_t kBlock = 128;  // rows or tokens of a task that copies or sums

  // `call` is contiguous. hidden: where what experts keep is, or goes.
  Tiles(const Call& call, const Kept& kept);
  Tiles(const Tiles&) = delete;

  std::vector<Group<S>>& groups() { return groups_; }
  const std::vector<Tile>& tiles() const { return tiles_; }
  Travel* travel() { return travel_ ? &*travel_ : nullptr; }  // nullptr: all experts are here
  int64_t sum_tasks() const { return (tokens_ + kBlock - 1) / kBlock; }
  ScratchSizes scratch_sizes() const { return {most_rows_, d_, most_width_}; }

  // Room that the tasks below need; `dweights` like the call's weights.
  void prepare_forward();
  void prepare_backward(const S* dout, Sum<S>* dweights, const std::vector<at::Tensor>& received);

  // Matrix 0, 1 or 2 of a group.
  void pack(const Group<S>& group, int matrix) const;

  // Rows [first, last) of what leaves with a part: of x with weights, of dout.
  void gather_leaving(int part, int64_t first, int64_t last);
  const at::Tensor& leaving(int part) const { return leaving_[part]; }
  // What becomes of the rows that came with a part: y, or dx with the weights' gradients.
  const at::Tensor& answers(int part) const { return answers_[part]; }

  void expert_forward(const Tile& tile, Scratch<S>& scratch) const;
  void expert_backward(const Tile& tile, Scratch<S>& scratch) const;
  void weights_backward(const Tile& tile, Scratch<S>& scratch) const;
  // Tokens of a task: to[t] = the sum of the token's rows. In backward also takes the weights' gradients that came back.
  void add_up(int64_t task, S* to) const;

 private:
  void add_groups(const Experts& experts, const int64_t* offsets, S* hidden);
  void add_tiles(int64_t group, int64_t rows, bool foreign);
  void place_rows();
  void make_room();

  int64_t first_in_group(const Tile& tile) const { return tile.foreign ? groups_[tile.group].own_rows + tile.first : tile.first; }
  int64_t token(const Tile& tile, int64_t i) const;
  void gather(const Tile& tile, const S* own, bool from_dout, S* to) const;
  void write_rows(const Tile& tile, const Sum<S>* sums) const;
  const Sum<S>* weights_of(const Tile& tile, Scratch<S>& scratch) const;
  // The tile's expert with packed weights.
  Group<S> packed_group(const Tile& tile, Scratch<S>& scratch) const;
  const S* operand(const std::vector<S>& rows, int64_t k, int64_t n, Scratch<S>& scratch) const;

  int64_t tokens_, d_, k_, routed_rows_, beside_;
  double limit_;
  const S* x_;
  const int64_t* order_;   // nullptr: no rows
  const Sum<S>* weights_;  // there are some where beside_ > 0
  const S* dout_ = nullptr;
  Sum<S>* dweights_ = nullptr;
  std::optional<Travel> travel_;
  std::vector<at::Tensor> received_;     // x with weights, by part; in backward
  int64_t own_begin_ = 0, own_end_ = 0;  // this rank's sorted rows that stay here
  bool has_shared_ = false, is_backward_ = false;
  int64_t most_width_ = 0, most_rows_ = 0;  // of a group; of a tile
  std::vector<Group<S>> groups_;
  std::vector<Tile> tiles_;
  // Of each choice: the row of `own_`, or the place in what comes back with a part.
  struct Place {
    int32_t part, row;  // part -1: own
  };
  std::vector<Place> places_;    // by sorted row
  std::vector<int32_t> row_of_;  // by choice
  at::Tensor room_packed_, room_act_, room_dhidden_, own_rows_;
  S* own_ = nullptr;  // what becomes of own rows: [own_end_ - own_begin_ + tokens of the shared expert, d]
  std::vector<at::Tensor> leaving_, answers_;
};

extern template class Tiles<float>;
extern template class Tiles<double>;
extern template class Tiles<at::BFloat16>;

}  // namespace hyperparallel::kernels::moe
