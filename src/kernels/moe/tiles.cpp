#include "kernels/moe/tiles.h"

#include <algorithm>
#include <cstring>

#include "base/error.h"
#include "kernels/moe/activation.h"
#include "kernels/row_sums.h"
#include "kernels/storage.h"

namespace hyperparallel::kernels::moe {
namespace {

constexpr int64_t kRowUnit = 32;  // of a tile's padded size

// Rows of a tile at most: sums of weights' gradients are read and written once for each tile, whose operands must stay in the
// second cache.
int64_t tile_rows(int64_t d, int64_t width) {
  constexpr int64_t kMost = 256, kLeast = 128, kNumbers = 1 << 18;
  return kMost * (d + 2 * width) <= kNumbers ? kMost : kLeast;
}

template <class S>
using Stored = std::conditional_t<std::is_same_v<S, at::BFloat16>, Bfloat16Bits, S>;
template <class S>
Stored<S>* stored(S* x) {
  return reinterpret_cast<Stored<S>*>(x);
}
template <class S>
const Stored<S>* stored(const S* x) {
  return reinterpret_cast<const Stored<S>*>(x);
}

template <class T>
const T* data(const at::Tensor& x) {
  return x.defined() ? x.const_data_ptr<T>() : nullptr;
}

int64_t padded(const Tile& tile) {
  return (tile.rows + kRowUnit - 1) / kRowUnit * kRowUnit;
}

// Rows of the group's own, zeros up to the tile's padded size.
template <class S>
void copy_rows(const Tile& tile, const S* from, int64_t width, S* to) {
  std::memcpy(to, from, tile.rows * width * sizeof(S));
  std::fill(to + tile.rows * width, to + padded(tile) * width, S(0));
}

}  // namespace

template <class S>
Scratch<S>::Scratch(const ScratchSizes& most)
    : rows(most.rows * most.d),
      hidden(most.rows * 2 * most.width),
      act(most.rows * most.width),
      columns(most.rows * std::max(most.d, 2 * most.width)),
      packed(most.rows * std::max(most.d, most.width)),
      sums(most.rows * std::max(most.d, 2 * most.width)),
      weights(most.rows),
      dweights(most.rows) {}

int64_t numbers_beside_row(at::ScalarType type) {
  return type == at::kBFloat16 ? sizeof(float) / sizeof(at::BFloat16) : 1;
}

template <class S>
Tiles<S>::Tiles(const Call& call, const Kept& kept)
    : tokens_(call.x.size(0)),
      d_(call.x.size(1)),
      k_(call.k),
      routed_rows_(call.order.defined() ? call.order.size(0) : 0),
      beside_(call.weights.defined() ? numbers_beside_row(call.x.scalar_type()) : 0),
      limit_(call.limit),
      x_(call.x.const_data_ptr<S>()),
      order_(data<int64_t>(call.order)),
      weights_(data<Sum<S>>(call.weights)) {
  const bool has_routed = call.order.defined();
  HP_CHECK(!has_routed || routed_rows_ == tokens_ * k_, "{} rows of {} tokens, {} each", routed_rows_, tokens_, k_);
  if (has_routed) {
    const int64_t* offsets = call.offsets.const_data_ptr<int64_t>();
    if (call.peers.group && call.peers.group->size() > 1) travel_.emplace(call.peers, offsets);
    const int64_t first = travel_ ? travel_->first_own() : 0;
    own_begin_ = offsets[first], own_end_ = offsets[first + call.routed.w1.size(0)];
    add_groups(call.routed, offsets + first, kept.routed.mutable_data_ptr<S>());
  }
  if (call.shared.w1.defined()) add_groups(call.shared, nullptr, kept.shared.mutable_data_ptr<S>());
  place_rows();
}

template <class S>
void Tiles<S>::add_groups(const Experts& experts, const int64_t* offsets, S* hidden) {
  const int64_t width = experts.w1.size(1), matrix = width * d_;
  most_rows_ = std::max(most_rows_, tile_rows(d_, width));
  has_shared_ = offsets == nullptr;
  for (int64_t e = 0; e < experts.w1.size(0); ++e) {
    Group<S> group{};
    group.w1 = experts.w1.const_data_ptr<S>() + e * matrix, group.w3 = experts.w3.const_data_ptr<S>() + e * matrix;
    group.w2 = experts.w2.const_data_ptr<S>() + e * matrix;
    group.width = width, group.hidden = hidden;
    group.sorted = offsets ? offsets[e] : -1;
    group.own_rows = offsets ? offsets[e + 1] - offsets[e] : tokens_;
    if (offsets && travel_) group.arrivals = &travel_->arrivals(e), group.part = travel_->part_of(e);
    hidden += group.rows() * 2 * width;
    const size_t before = tiles_.size();
    add_tiles(static_cast<int64_t>(groups_.size()), group.own_rows, false);
    add_tiles(static_cast<int64_t>(groups_.size()), group.foreign_rows(), true);
    group.tiles = static_cast<int64_t>(tiles_.size() - before);
    groups_.push_back(group);
  }
  most_width_ = std::max(most_width_, width);
}

template <class S>
void Tiles<S>::add_tiles(int64_t group, int64_t rows, bool foreign) {
  const int64_t most = most_rows_, tiles = (rows + most - 1) / most;
  for (int64_t i = 0; i < tiles; ++i) {
    const int64_t begin = rows * i / tiles, end = rows * (i + 1) / tiles;
    const bool is_first = tiles_.empty() || tiles_.back().group != group;
    tiles_.push_back({group, begin, end - begin, foreign, is_first});
  }
}

template <class S>
void Tiles<S>::place_rows() {
  places_.resize(routed_rows_), row_of_.resize(routed_rows_);
  for (int64_t row = 0; row < routed_rows_; ++row) row_of_[order_[row]] = static_cast<int32_t>(row);
  for (int64_t row = own_begin_; row < own_end_; ++row) places_[row] = {-1, static_cast<int32_t>(row - own_begin_)};
  if (!travel_) return;
  for (size_t part = 0; part < travel_->parts().size(); ++part) {
    const std::vector<int32_t>& leaving = travel_->parts()[part].leaving;
    for (size_t i = 0; i < leaving.size(); ++i) places_[leaving[i]] = {static_cast<int32_t>(part), static_cast<int32_t>(i)};
  }
}

template <class S>
void Tiles<S>::make_room() {
  const auto options = at::TensorOptions().dtype(c10::CppTypeToScalarType<S>::value);
  int64_t numbers = 0;
  for (const Group<S>& g : groups_)
    if (g.is_packed_before()) numbers += 3 * g.width * d_;
  room_packed_ = at::empty({numbers}, options);
  S* next = room_packed_.template mutable_data_ptr<S>();
  for (Group<S>& g : groups_) {
    if (!g.is_packed_before()) continue;
    const int64_t matrix = g.width * d_;
    g.packed1 = next, g.packed3 = next + matrix, g.packed2 = next + 2 * matrix;
    next += 3 * matrix;
  }
  own_rows_ = at::empty({own_end_ - own_begin_ + (has_shared_ ? tokens_ : 0), d_}, options);
  own_ = own_rows_.template mutable_data_ptr<S>();
  if (!travel_) return;
  for (const Travel::Part& part : travel_->parts()) {
    leaving_.push_back(at::empty({static_cast<int64_t>(part.leaving.size()), d_ + (is_backward_ ? 0 : beside_)}, options));
    answers_.push_back(at::empty({part.coming, d_ + (is_backward_ ? beside_ : 0)}, options));
  }
}

template <class S>
void Tiles<S>::prepare_forward() {
  make_room();
}

template <class S>
void Tiles<S>::prepare_backward(const S* dout, Sum<S>* dweights, const std::vector<at::Tensor>& received) {
  is_backward_ = true, dout_ = dout, dweights_ = dweights, received_ = received;
  make_room();
  int64_t numbers = 0;
  for (const Group<S>& g : groups_) numbers += g.rows() * g.width;
  const auto options = room_packed_.options();
  room_act_ = at::empty({numbers}, options), room_dhidden_ = at::empty({2 * numbers}, options);
  S *act = room_act_.template mutable_data_ptr<S>(), *dhidden = room_dhidden_.template mutable_data_ptr<S>();
  for (Group<S>& g : groups_) {
    g.act = act, g.dhidden = dhidden;
    act += g.rows() * g.width, dhidden += 2 * g.rows() * g.width;
  }
}

template <class S>
void Tiles<S>::pack(const Group<S>& g, int matrix) const {
  if (is_backward_) {
    if (matrix == 0) gemm::pack(g.w1, d_, g.width, d_, g.packed1);
    if (matrix == 1) gemm::pack(g.w3, d_, g.width, d_, g.packed3);
    if (matrix == 2) gemm::pack(g.w2, g.width, d_, g.width, g.packed2);
  } else {
    if (matrix == 0) gemm::pack_transposed(g.w1, d_, d_, g.width, g.packed1);
    if (matrix == 1) gemm::pack_transposed(g.w3, d_, d_, g.width, g.packed3);
    if (matrix == 2) gemm::pack_transposed(g.w2, g.width, g.width, d_, g.packed2);
  }
}

template <class S>
Group<S> Tiles<S>::packed_group(const Tile& tile, Scratch<S>& s) const {
  Group<S> g = groups_[tile.group];
  if (g.is_packed_before()) return g;
  const int64_t matrix = g.width * d_;
  if (s.experts_weights.empty()) s.experts_weights.resize(3 * most_width_ * d_);
  g.packed1 = s.experts_weights.data(), g.packed3 = g.packed1 + matrix, g.packed2 = g.packed3 + matrix;
  for (int m = 0; m < 3; ++m) pack(g, m);
  return g;
}

template <class S>
void Tiles<S>::gather_leaving(int part, int64_t first, int64_t last) {
  const std::vector<int32_t>& rows = travel_->parts()[part].leaving;
  const int64_t stride = leaving_[part].size(1);
  S* to = leaving_[part].template mutable_data_ptr<S>() + first * stride;
  for (int64_t i = first; i < last; ++i, to += stride) {
    std::memcpy(to, (is_backward_ ? dout_ : x_) + order_[rows[i]] / k_ * d_, d_ * sizeof(S));
    if (!is_backward_ && beside_ > 0) std::memcpy(to + d_, weights_ + rows[i], sizeof(Sum<S>));
  }
}

template <class S>
int64_t Tiles<S>::token(const Tile& tile, int64_t i) const {
  const Group<S>& g = groups_[tile.group];
  return g.sorted < 0 ? tile.first + i : order_[g.sorted + tile.first + i] / k_;
}

// The rows of `own`, by token, or of what came, that a tile stands for, zeros up to its padded size.
template <class S>
void Tiles<S>::gather(const Tile& tile, const S* own, bool from_dout, S* to) const {
  const Group<S>& g = groups_[tile.group];
  if (tile.foreign) {
    const at::Tensor& rows = from_dout || !is_backward_ ? travel_->parts()[g.part].there : received_[g.part];
    const S* from = rows.const_data_ptr<S>();
    for (int64_t i = 0; i < tile.rows; ++i)
      std::memcpy(to + i * d_, from + (*g.arrivals)[tile.first + i] * rows.size(1), d_ * sizeof(S));
  } else {
    for (int64_t i = 0; i < tile.rows; ++i) std::memcpy(to + i * d_, own + token(tile, i) * d_, d_ * sizeof(S));
  }
  std::fill(to + tile.rows * d_, to + padded(tile) * d_, S(0));
}

template <class S>
void Tiles<S>::write_rows(const Tile& tile, const Sum<S>* sums) const {
  const Group<S>& g = groups_[tile.group];
  if (tile.foreign) {
    const int64_t stride = answers_[g.part].size(1);
    S* to = answers_[g.part].template mutable_data_ptr<S>();
    for (int64_t i = 0; i < tile.rows; ++i) narrow_row(sums + i * d_, d_, stored(to + (*g.arrivals)[tile.first + i] * stride));
    return;
  }
  const int64_t first = g.sorted < 0 ? own_end_ - own_begin_ : g.sorted - own_begin_;
  for (int64_t i = 0; i < tile.rows; ++i) narrow_row(sums + i * d_, d_, stored(own_ + (first + tile.first + i) * d_));
}

// Routing weights of a tile's rows; nullptr: ones.
template <class S>
const Sum<S>* Tiles<S>::weights_of(const Tile& tile, Scratch<S>& s) const {
  const Group<S>& g = groups_[tile.group];
  if (beside_ == 0 || g.sorted < 0) return nullptr;
  if (!tile.foreign) return weights_ + g.sorted + tile.first;
  const at::Tensor& rows = is_backward_ ? received_[g.part] : travel_->parts()[g.part].there;
  const S* from = rows.const_data_ptr<S>() + d_;
  for (int64_t i = 0; i < tile.rows; ++i)
    std::memcpy(&s.weights[i], from + (*g.arrivals)[tile.first + i] * rows.size(1), sizeof(Sum<S>));
  return s.weights.data();
}

template <class S>
void Tiles<S>::expert_forward(const Tile& tile, Scratch<S>& s) const {
  const Group<S> g = packed_group(tile, s);
  const int64_t w = g.width, m = padded(tile);
  gather(tile, x_, false, s.rows.data());
  gemm::product<S>(m, w, d_, s.rows.data(), d_, g.packed1, s.sums.data(), 2 * w, false);
  gemm::product<S>(m, w, d_, s.rows.data(), d_, g.packed3, s.sums.data() + w, 2 * w, false);
  activate(tile.rows, w, s.sums.data(), weights_of(tile, s), limit_, stored(g.hidden + first_in_group(tile) * 2 * w),
           stored(s.act.data()));
  std::fill(s.act.data() + tile.rows * w, s.act.data() + m * w, S(0));
  gemm::product<S>(m, d_, w, s.act.data(), w, g.packed2, s.sums.data(), d_, false);
  write_rows(tile, s.sums.data());
}

template <class S>
void Tiles<S>::expert_backward(const Tile& tile, Scratch<S>& s) const {
  const Group<S> g = packed_group(tile, s);
  const int64_t w = g.width, m = padded(tile), first = first_in_group(tile);
  gather(tile, dout_, true, s.rows.data());
  gemm::product<S>(m, w, d_, s.rows.data(), d_, g.packed2, s.sums.data(), w, false);
  const Sum<S>* weights = weights_of(tile, s);
  activate_backward(tile.rows, w, stored(const_cast<const S*>(g.hidden) + first * 2 * w), s.sums.data(), weights, limit_,
                    stored(g.act + first * w), stored(s.hidden.data()), weights ? s.dweights.data() : nullptr);
  if (weights && !tile.foreign) std::copy_n(s.dweights.data(), tile.rows, dweights_ + g.sorted + tile.first);
  if (weights && tile.foreign) {
    const int64_t stride = answers_[g.part].size(1);
    S* to = answers_[g.part].template mutable_data_ptr<S>() + d_;
    for (int64_t i = 0; i < tile.rows; ++i)
      std::memcpy(to + (*g.arrivals)[tile.first + i] * stride, &s.dweights[i], sizeof(Sum<S>));
  }
  std::memcpy(g.dhidden + first * 2 * w, s.hidden.data(), tile.rows * 2 * w * sizeof(S));
  std::fill(s.hidden.data() + tile.rows * 2 * w, s.hidden.data() + m * 2 * w, S(0));
  gemm::product<S>(m, d_, w, s.hidden.data(), 2 * w, g.packed1, s.sums.data(), d_, false);
  gemm::product<S>(m, d_, w, s.hidden.data() + w, 2 * w, g.packed3, s.sums.data(), d_, true);
  write_rows(tile, s.sums.data());
}

// Rows [k, n] as a right operand.
template <class S>
const S* Tiles<S>::operand(const std::vector<S>& rows, int64_t k, int64_t n, Scratch<S>& s) const {
  gemm::pack<S>(rows.data(), n, k, n, s.packed.data());
  return s.packed.data();
}

template <class S>
void Tiles<S>::weights_backward(const Tile& tile, Scratch<S>& s) const {
  const Group<S>& g = groups_[tile.group];
  if (!g.dw1) return;
  const int64_t w = g.width, m = padded(tile), first = first_in_group(tile);
  const bool adds = !(g.is_unset && tile.is_first);
  gather(tile, x_, false, s.rows.data());
  const S* rows = operand(s.rows, m, d_, s);
  copy_rows(tile, g.dhidden + first * 2 * w, 2 * w, s.hidden.data());
  gemm::transpose<S>(s.hidden.data(), 2 * w, m, 2 * w, s.columns.data(), m);
  gemm::product<S>(w, d_, m, s.columns.data(), m, rows, g.dw1, d_, adds);
  gemm::product<S>(w, d_, m, s.columns.data() + w * m, m, rows, g.dw3, d_, adds);
  gather(tile, dout_, true, s.rows.data());
  gemm::transpose<S>(s.rows.data(), d_, m, d_, s.columns.data(), m);
  copy_rows(tile, g.act + first * w, w, s.act.data());
  gemm::product<S>(d_, w, m, s.columns.data(), m, operand(s.act, m, w, s), g.dw2, w, adds);
}

template <class S>
void Tiles<S>::add_up(int64_t task, S* to) const {
  std::vector<const Stored<S>*> rows;
  const int64_t end = std::min(tokens_, (task + 1) * kBlock);
  for (int64_t t = task * kBlock; t < end; ++t) {
    rows.clear();
    for (int64_t i = 0; i < k_ && routed_rows_ > 0; ++i) {
      const int32_t sorted = row_of_[t * k_ + i];
      const Place& place = places_[sorted];
      if (place.part < 0) {
        rows.push_back(stored(const_cast<const S*>(own_) + place.row * d_));
        continue;
      }
      const at::Tensor& back = travel_->parts()[place.part].back;
      const S* row = back.const_data_ptr<S>() + place.row * back.size(1);
      rows.push_back(stored(row));
      if (is_backward_ && beside_ > 0) std::memcpy(dweights_ + sorted, row + d_, sizeof(Sum<S>));
    }
    if (has_shared_) rows.push_back(stored(const_cast<const S*>(own_) + (own_end_ - own_begin_ + t) * d_));
    sum_rows(rows.data(), static_cast<int64_t>(rows.size()), d_, stored(to + t * d_));
  }
}

template struct Scratch<float>;
template struct Scratch<double>;
template struct Scratch<at::BFloat16>;
template class Tiles<float>;
template class Tiles<double>;
template class Tiles<at::BFloat16>;

}  // namespace hyperparallel::kernels::moe
