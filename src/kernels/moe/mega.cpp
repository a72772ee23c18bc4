#include "kernels/moe/mega.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "kernels/gemm/tile.h"
#include "kernels/moe/activation.h"
#include "kernels/storage.h"
#include "kernels/types.h"
#include "runtime/run.h"

namespace hyperparallel::kernels::moe {
namespace {

using gemm::Sum;
using runtime::TaskKind;

constexpr int64_t kTileRows = 128, kRowUnit = 32, kTokens = 128;  // rows of a tile at most; its size's unit; of a sum task

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

// One expert with its rows, which are numbered through: routed ones, then those of the shared expert.
template <class S>
struct Group {
  const S *w1, *w3, *w2;
  Sum<S>*dw1 = nullptr, *dw3 = nullptr, *dw2 = nullptr;
  int64_t first, rows, width;
  S* hidden;  // [rows, 2 width], from the group's first row on, as all below
  const Sum<S>* weights = nullptr;
  S *packed1 = nullptr, *packed3 = nullptr, *packed2 = nullptr;
  S *act = nullptr, *dhidden = nullptr;  // [rows, width], [rows, 2 width]
  Sum<S>* dweights = nullptr;
};

struct Tile {
  int64_t group, first, rows;  // `first` counts from the group's first row
  int64_t padded() const { return (rows + kRowUnit - 1) / kRowUnit * kRowUnit; }
};

// Memory of a worker, for the largest tile.
template <class S>
struct Scratch {
  std::vector<S> rows, hidden, act, columns, packed;
  std::vector<Sum<S>> sums;
  Scratch(int64_t d, int64_t width)
      : rows(kTileRows * d),
        hidden(kTileRows * 2 * width),
        act(kTileRows * width),
        columns(kTileRows * std::max(d, 2 * width)),
        packed(kTileRows * std::max(d, width)),
        sums(kTileRows * std::max(d, 2 * width)) {}
};

template <class S>
class Layer {
  static constexpr bool kPacks = std::is_same_v<S, at::BFloat16>;

 public:
  explicit Layer(const Call& call)
      : tokens_(call.x.size(0)),
        d_(call.x.size(1)),
        k_(call.k),
        routed_rows_(call.order.defined() ? call.order.size(0) : 0),
        limit_(call.limit),
        x_(call.x.const_data_ptr<S>()),
        order_(call.order.defined() ? call.order.const_data_ptr<int64_t>() : nullptr) {
    HP_CHECK(!order_ || routed_rows_ == tokens_ * k_, "{} rows of {} tokens, {} each", routed_rows_, tokens_, k_);
    if (order_) {
      row_of_.resize(routed_rows_);
      for (int64_t row = 0; row < routed_rows_; ++row) row_of_[order_[row]] = row;
    }
  }

  // `hidden`, `weights`: of these experts' first row.
  void add_groups(const Experts& experts, const int64_t* offsets, S* hidden, const Sum<S>* weights) {
    const int64_t width = experts.w1.size(1), matrix = width * d_;
    has_shared_ = offsets == nullptr;
    for (int64_t e = 0; e < experts.w1.size(0); ++e) {
      Group<S> group{};
      group.w1 = experts.w1.const_data_ptr<S>() + e * matrix, group.w3 = experts.w3.const_data_ptr<S>() + e * matrix;
      group.w2 = experts.w2.const_data_ptr<S>() + e * matrix;
      const int64_t begin = offsets ? offsets[e] : 0;
      group.first = offsets ? begin : routed_rows_, group.rows = offsets ? offsets[e + 1] - begin : tokens_;
      group.width = width, group.hidden = hidden + begin * 2 * width;
      if (weights) group.weights = weights + begin;
      add_tiles(static_cast<int64_t>(groups_.size()), group.rows);
      groups_.push_back(group);
    }
    most_width_ = std::max(most_width_, width);
  }
  std::vector<Group<S>>& groups() { return groups_; }

  void forward(S* out) {
    const auto options = at::TensorOptions().dtype(c10::CppTypeToScalarType<S>::value);
    const at::Tensor packed = pack_into(options);
    at::Tensor y;
    const bool direct = rows_are_sums();
    if (!direct) y = at::empty({rows(), d_}, options);
    S* y_rows = direct ? nullptr : y.template mutable_data_ptr<S>();
    runtime::Plan plan;
    const int pack = plan.add_stage("pack", TaskKind::kVector), expert = plan.add_stage("expert", TaskKind::kMatrix),
              sum = plan.add_stage("combine", TaskKind::kVector);
    const int all = plan.add_counter("tiles of experts");
    add_packed_tiles(plan, pack, expert, all);
    if (!direct) add_sums(plan, sum, all);
    plan.close();
    run(plan, [&](int stage, int task, Scratch<S>& scratch) {
      if (stage == pack) return pack_forward(task);
      if (stage == sum) return add_up(task, y_rows, out);
      expert_forward(tiles_[task], scratch, direct ? out : y_rows, direct);
    });
  }

  void backward(const S* dout, S* dx, bool wants_weights) {
    const auto options = at::TensorOptions().dtype(c10::CppTypeToScalarType<S>::value);
    dout_ = dout;
    at::Tensor packed, all_act, all_dhidden;
    if (kPacks) {
      packed = pack_into(options);
    } else {  // rows as they lie
      for (Group<S>& g : groups_)
        g.packed1 = const_cast<S*>(g.w1), g.packed3 = const_cast<S*>(g.w3), g.packed2 = const_cast<S*>(g.w2);
    }
    int64_t numbers = 0;
    for (const Group<S>& g : groups_) numbers += g.rows * g.width;
    all_act = at::empty({numbers}, options), all_dhidden = at::empty({2 * numbers}, options);
    S *act = all_act.mutable_data_ptr<S>(), *dhidden = all_dhidden.mutable_data_ptr<S>();
    for (Group<S>& g : groups_) {
      g.act = act, g.dhidden = dhidden;
      act += g.rows * g.width, dhidden += 2 * g.rows * g.width;
    }
    const bool direct = rows_are_sums();
    at::Tensor rows_of_dx;
    if (!direct) rows_of_dx = at::empty({rows(), d_}, options);
    S* dx_rows = direct ? dx : rows_of_dx.template mutable_data_ptr<S>();

    runtime::Plan plan;
    const int pack = plan.add_stage("pack", TaskKind::kVector), derive = plan.add_stage("expert backward", TaskKind::kMatrix),
              weights = plan.add_stage("expert weights", TaskKind::kMatrix),
              sum = plan.add_stage("dispatch backward", TaskKind::kVector);
    const int all = plan.add_counter("tiles of experts");
    add_backward_tiles(plan, kPacks ? pack : -1, derive, wants_weights ? weights : -1, all);
    if (!direct) add_sums(plan, sum, all);
    plan.close();
    run(plan, [&](int stage, int task, Scratch<S>& scratch) {
      if (stage == pack) return pack_backward(task);
      if (stage == sum) return add_up(task, dx_rows, dx);
      if (stage == derive) return expert_backward(tiles_[task], scratch, dx_rows, direct);
      weights_backward(tiles_[task], scratch);
    });
  }

 private:
  bool rows_are_sums() const { return k_ == 1 && order_ && !has_shared_; }  // a row each: nothing to add up
  int64_t rows() const { return routed_rows_ + (has_shared_ ? tokens_ : 0); }
  int64_t token_of(int64_t row) const { return row < routed_rows_ ? order_[row] / k_ : row - routed_rows_; }

  void add_tiles(int64_t group, int64_t count) {
    const int64_t tiles = (count + kTileRows - 1) / kTileRows;
    for (int64_t i = 0; i < tiles; ++i) {
      const int64_t begin = count * i / tiles, end = count * (i + 1) / tiles;
      tiles_.push_back({group, begin, end - begin});
    }
  }

  // Room for three packed matrices of each expert.
  at::Tensor pack_into(const at::TensorOptions& options) {
    int64_t numbers = 0;
    for (const Group<S>& g : groups_) numbers += 3 * g.width * d_;
    const at::Tensor all = at::empty({numbers}, options);
    S* next = all.mutable_data_ptr<S>();
    for (Group<S>& g : groups_) {
      const int64_t matrix = g.width * d_;
      g.packed1 = next, g.packed3 = next + matrix, g.packed2 = next + 2 * matrix;
      next += 3 * matrix;
    }
    return all;
  }

  // Pack tasks are numbered 3 group + matrix.
  void add_pack_tasks(runtime::Plan& plan, int pack, int64_t group, int packed) const {
    for (int64_t matrix = 0; matrix < 3; ++matrix) plan.add_task(pack, static_cast<int>(3 * group + matrix), {}, {packed});
  }
  template <class Add>
  void for_each_tile(runtime::Plan& plan, int pack, const Add& add) const {
    int64_t group = -1, index = 0;
    int packed = -1;
    for (size_t tile = 0; tile < tiles_.size(); ++tile, ++index) {
      if (tiles_[tile].group != group) {
        group = tiles_[tile].group, index = 0;
        if (pack >= 0) {
          packed = plan.add_counter("weights of expert " + std::to_string(group));
          add_pack_tasks(plan, pack, group, packed);
        }
      }
      add(static_cast<int>(tile), index, runtime::Wait{packed, 3});
    }
  }
  void add_packed_tiles(runtime::Plan& plan, int pack, int expert, int all) const {
    for_each_tile(plan, pack, [&](int tile, int64_t, runtime::Wait wait) { plan.add_task(expert, tile, wait, {all}); });
  }
  // The sum over a tile comes after its own derivation and after the sum over the expert's tile before.
  void add_backward_tiles(runtime::Plan& plan, int pack, int derive, int weights, int all) const {
    int turn = -1;
    for_each_tile(plan, pack, [&](int tile, int64_t index, runtime::Wait wait) {
      if (weights < 0) return plan.add_task(derive, tile, wait, {all});
      if (index == 0) turn = plan.add_counter("turn of tile " + std::to_string(tile));
      plan.add_task(derive, tile, wait, {all, turn});
      const int own = turn;
      turn = plan.add_counter("turn of tile " + std::to_string(tile + 1));
      plan.add_task(weights, tile, {own, index == 0 ? 1 : 2}, {turn});
    });
  }
  void add_sums(runtime::Plan& plan, int stage, int all) const {
    for (int64_t first = 0; first < tokens_; first += kTokens)
      plan.add_task(stage, static_cast<int>(first / kTokens), {all, static_cast<int32_t>(tiles_.size())}, {});
  }

  template <class Do>
  void run(const runtime::Plan& plan, const Do& body) const {
    std::vector<std::unique_ptr<Scratch<S>>> scratch(runtime::workers());
    runtime::run(plan, [&](int stage, int task, int worker) {
      if (!scratch[worker]) scratch[worker] = std::make_unique<Scratch<S>>(d_, most_width_);
      body(stage, task, *scratch[worker]);
      if (kPacks) gemm::release();
    });
  }

  void pack_forward(int task) const {
    const Group<S>& g = groups_[task / 3];
    if (task % 3 == 0) gemm::pack_transposed(g.w1, d_, d_, g.width, g.packed1);
    if (task % 3 == 1) gemm::pack_transposed(g.w3, d_, d_, g.width, g.packed3);
    if (task % 3 == 2) gemm::pack_transposed(g.w2, g.width, g.width, d_, g.packed2);
  }
  void pack_backward(int task) const {
    const Group<S>& g = groups_[task / 3];
    if (task % 3 == 0) gemm::pack(g.w1, d_, g.width, d_, g.packed1);
    if (task % 3 == 1) gemm::pack(g.w3, d_, g.width, d_, g.packed3);
    if (task % 3 == 2) gemm::pack(g.w2, g.width, d_, g.width, g.packed2);
  }

  // The tokens' rows that a tile stands for, zeros up to its padded size.
  void gather(const Tile& tile, const S* from, S* to) const {
    const int64_t first = groups_[tile.group].first + tile.first;
    for (int64_t i = 0; i < tile.rows; ++i) std::memcpy(to + i * d_, from + token_of(first + i) * d_, d_ * sizeof(S));
    std::fill(to + tile.rows * d_, to + tile.padded() * d_, S(0));
  }
  // Rows of the group's own, likewise.
  static void copy_rows(const Tile& tile, const S* from, int64_t width, S* to) {
    std::memcpy(to, from + tile.first * width, tile.rows * width * sizeof(S));
    std::fill(to + tile.rows * width, to + tile.padded() * width, S(0));
  }
  void write_rows(const Tile& tile, const Sum<S>* sums, S* to, bool by_token) const {
    const int64_t first = groups_[tile.group].first + tile.first;
    for (int64_t i = 0; i < tile.rows; ++i) {
      const int64_t row = by_token ? token_of(first + i) : first + i;
      narrow_row(sums + i * d_, d_, stored(to + row * d_));
    }
  }

  void expert_forward(const Tile& tile, Scratch<S>& s, S* y, bool by_token) const {
    const Group<S>& g = groups_[tile.group];
    const int64_t w = g.width, m = tile.padded();
    gather(tile, x_, s.rows.data());
    gemm::product<S>(m, w, d_, s.rows.data(), d_, g.packed1, s.sums.data(), 2 * w, false);
    gemm::product<S>(m, w, d_, s.rows.data(), d_, g.packed3, s.sums.data() + w, 2 * w, false);
    activate(tile.rows, w, s.sums.data(), g.weights ? g.weights + tile.first : nullptr, limit_,
             stored(g.hidden + tile.first * 2 * w), stored(s.act.data()));
    std::fill(s.act.data() + tile.rows * w, s.act.data() + m * w, S(0));
    gemm::product<S>(m, d_, w, s.act.data(), w, g.packed2, s.sums.data(), d_, false);
    write_rows(tile, s.sums.data(), y, by_token);
  }

  void expert_backward(const Tile& tile, Scratch<S>& s, S* dx_rows, bool by_token) const {
    const Group<S>& g = groups_[tile.group];
    const int64_t w = g.width, m = tile.padded();
    gather(tile, dout_, s.rows.data());
    gemm::product<S>(m, w, d_, s.rows.data(), d_, g.packed2, s.sums.data(), w, false);
    activate_backward(tile.rows, w, stored(const_cast<const S*>(g.hidden) + tile.first * 2 * w), s.sums.data(),
                      g.weights ? g.weights + tile.first : nullptr, limit_, stored(g.act + tile.first * w),
                      stored(s.hidden.data()), g.dweights ? g.dweights + tile.first : nullptr);
    std::memcpy(g.dhidden + tile.first * 2 * w, s.hidden.data(), tile.rows * 2 * w * sizeof(S));
    std::fill(s.hidden.data() + tile.rows * 2 * w, s.hidden.data() + m * 2 * w, S(0));
    gemm::product<S>(m, d_, w, s.hidden.data(), 2 * w, g.packed1, s.sums.data(), d_, false);
    gemm::product<S>(m, d_, w, s.hidden.data() + w, 2 * w, g.packed3, s.sums.data(), d_, true);
    write_rows(tile, s.sums.data(), dx_rows, by_token);
  }

  // Rows [k, n] as a right operand: packed, where rows as they lie are none.
  static const S* operand(const std::vector<S>& rows, int64_t k, int64_t n, Scratch<S>& s) {
    if (!kPacks) return rows.data();
    gemm::pack<S>(rows.data(), n, k, n, s.packed.data());
    return s.packed.data();
  }
  void weights_backward(const Tile& tile, Scratch<S>& s) const {
    const Group<S>& g = groups_[tile.group];
    if (!g.dw1) return;
    const int64_t w = g.width, m = tile.padded();
    gather(tile, x_, s.rows.data());
    const S* rows = operand(s.rows, m, d_, s);
    copy_rows(tile, g.dhidden, 2 * w, s.hidden.data());
    gemm::transpose<S>(s.hidden.data(), 2 * w, m, 2 * w, s.columns.data(), m);
    gemm::product<S>(w, d_, m, s.columns.data(), m, rows, g.dw1, d_, true);
    gemm::product<S>(w, d_, m, s.columns.data() + w * m, m, rows, g.dw3, d_, true);
    gather(tile, dout_, s.rows.data());
    gemm::transpose<S>(s.rows.data(), d_, m, d_, s.columns.data(), m);
    copy_rows(tile, g.act, w, s.act.data());
    gemm::product<S>(d_, w, m, s.columns.data(), m, operand(s.act, m, w, s), g.dw2, w, true);
  }

  // to[t] = the sum of the token's rows.
  void add_up(int task, const S* from, S* to) const {
    std::vector<const Stored<S>*> rows;
    const int64_t end = std::min(tokens_, (task + 1) * kTokens);
    for (int64_t t = task * kTokens; t < end; ++t) {
      rows.clear();
      for (int64_t i = 0; i < k_ && order_; ++i) rows.push_back(stored(from + row_of_[t * k_ + i] * d_));
      if (has_shared_) rows.push_back(stored(from + (routed_rows_ + t) * d_));
      sum_rows(rows.data(), static_cast<int64_t>(rows.size()), d_, stored(to + t * d_));
    }
  }

  int64_t tokens_, d_, k_, routed_rows_;
  double limit_;
  const S* x_;
  const int64_t* order_;
  const S* dout_ = nullptr;
  bool has_shared_ = false;
  int64_t most_width_ = 0;
  std::vector<int64_t> row_of_;  // by choice
  std::vector<Group<S>> groups_;
  std::vector<Tile> tiles_;
};

template <class S>
Layer<S> layer_of(const Call& call, const Kept& kept) {
  Layer<S> layer(call);
  const auto data = [](const at::Tensor& x) { return x.defined() ? x.const_data_ptr<Sum<S>>() : nullptr; };
  if (call.order.defined())
    layer.add_groups(call.routed, call.offsets.const_data_ptr<int64_t>(), kept.routed.mutable_data_ptr<S>(), data(call.weights));
  if (call.shared.w1.defined()) layer.add_groups(call.shared, nullptr, kept.shared.mutable_data_ptr<S>(), nullptr);
  return layer;
}

Call contiguous(Call call) {
  const auto make = [](at::Tensor& x) {
    if (x.defined()) x = x.detach().contiguous();
  };
  for (at::Tensor* x : {&call.x, &call.order, &call.offsets, &call.weights}) make(*x);
  for (Experts* experts : {&call.routed, &call.shared}) make(experts->w1), make(experts->w3), make(experts->w2);
  return call;
}

template <class Body>
void with_type(at::ScalarType type, const Body& body) {
  if (type == at::kFloat) return body(float());
  if (type == at::kDouble) return body(double());
  HP_CHECK(type == at::kBFloat16, "experts of type {}", at::toString(type));
  body(at::BFloat16());
}

// Points each expert to its gradients.
template <class S>
void set_gradients(Group<S>* groups, const Experts& to) {
  if (!to.w1.defined()) return;
  const int64_t matrix = to.w1.size(1) * to.w1.size(2);
  for (int64_t e = 0; e < to.w1.size(0); ++e) {
    groups[e].dw1 = to.w1.mutable_data_ptr<Sum<S>>() + e * matrix, groups[e].dw3 = to.w3.mutable_data_ptr<Sum<S>>() + e * matrix;
    groups[e].dw2 = to.w2.mutable_data_ptr<Sum<S>>() + e * matrix;
  }
}

}  // namespace

std::string refusal(at::ScalarType type, int64_t d, int64_t width) {
  if (const std::string why = gemm::tile_refusal(type); !why.empty()) return why;
  constexpr int64_t kUnit = 4;
  if (d % kUnit != 0 || width % kUnit != 0) return fmt::format("widths {} and {} are no multiples of {}", d, width, kUnit);
  return "";
}

at::Tensor forward(const Call& given, Kept& kept) {
  const Call call = contiguous(given);
  const int64_t tokens = call.x.size(0), d = call.x.size(1);
  if (call.order.defined()) kept.routed = at::empty({call.order.size(0), 2 * call.routed.w1.size(1)}, call.x.options());
  if (call.shared.w1.defined()) kept.shared = at::empty({tokens, 2 * call.shared.w1.size(1)}, call.x.options());
  at::Tensor out = at::empty({tokens, d}, call.x.options());
  with_type(call.x.scalar_type(), [&](auto type) {
    using S = decltype(type);
    layer_of<S>(call, kept).forward(out.mutable_data_ptr<S>());
  });
  return out;
}

Gradients backward(const Call& given, const Kept& kept, const at::Tensor& given_dout, const Experts& routed,
                   const Experts& shared) {
  const Call call = contiguous(given);
  const at::Tensor dout = given_dout.to(call.x.scalar_type()).contiguous();
  Gradients gradients{at::empty(call.x.sizes(), call.x.options()), {}};
  if (call.weights.defined()) gradients.weights = at::empty_like(call.weights);
  with_type(call.x.scalar_type(), [&](auto type) {
    using S = decltype(type);
    Layer<S> layer = layer_of<S>(call, kept);
    std::vector<Group<S>>& groups = layer.groups();
    const int64_t experts = call.order.defined() ? call.routed.w1.size(0) : 0;
    set_gradients(groups.data(), routed);
    set_gradients(groups.data() + experts, shared);
    for (int64_t e = 0; e < experts && call.weights.defined(); ++e)
      groups[e].dweights = gradients.weights.mutable_data_ptr<Sum<S>>() + groups[e].first;
    layer.backward(dout.const_data_ptr<S>(), gradients.x.mutable_data_ptr<S>(), routed.w1.defined() || shared.w1.defined());
  });
  return gradients;
}

}  // namespace hyperparallel::kernels::moe
