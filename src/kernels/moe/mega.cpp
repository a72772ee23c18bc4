#include "kernels/moe/mega.h"

#include <vector>

#include "base/error.h"
#include "kernels/moe/tiles.h"
#include "kernels/types.h"
#include "runtime/run.h"

namespace hyperparallel::kernels::moe {
namespace {

using runtime::Plan;
using runtime::TaskKind;
using runtime::Wait;

// The plan of one direction and its run.
//
// NOTE [Order of exchanges]: a rank starts its exchanges in one order, all dispatches before all returns, whatever becomes ready
// first: each `start` waits for the one before.
template <class S>
class Pass {
 public:
  // `to`: [tokens, d]. sums_weights: in backward, whether gradients of weights are wanted.
  Pass(Tiles<S>& tiles, bool is_backward, bool sums_weights, S* to)
      : tiles_(tiles), is_backward_(is_backward), sums_weights_(sums_weights), to_(to) {
    all_ = plan_.add_counter("tiles of experts");
    add_counters();
    if (tiles_.travel()) add_dispatch(*tiles_.travel());
    add_experts();
    for (int64_t task = 0; task < tiles_.sum_tasks(); ++task)
      plan_.add_task(combine_, static_cast<int>(task), {all_, static_cast<int32_t>(tiles_.tiles().size() + parts())}, {});
    plan_.close();
  }

  // Seconds without anything to do but wait for other ranks.
  double run() {
    runtime::WorkerScratch<Scratch<S>> scratch;
    const auto body = [&](int stage, int task, int worker) {
      carry_out(stage, task, scratch.of(worker, tiles_.scratch_sizes()));
      gemm::release();
    };
    return runtime::run(plan_, body, [&](int stage, int task) { return is_done(stage, task); });
  }

 private:
  struct Block {
    int part;
    int64_t first, last;
  };

  int64_t parts() { return tiles_.travel() ? static_cast<int64_t>(tiles_.travel()->parts().size()) : 0; }

  // NOTE [One counter]: a task waits for one counter, so what tiles of other ranks' rows wait for is bumped by the exchange that
  // brings them and by the tasks that pack their expert's weights.
  void add_counters() {
    for (int i = 0; i < 2 * parts(); ++i) may_start_.push_back(plan_.add_counter("start of exchange " + std::to_string(i)));
    const size_t groups = tiles_.groups().size();
    packed_.assign(groups, -1), ready_.assign(groups, -1);
    for (size_t g = 0; g < groups; ++g) {
      packed_[g] = plan_.add_counter("weights of expert " + std::to_string(g));
      if (tiles_.groups()[g].foreign_rows() > 0) ready_[g] = plan_.add_counter("weights and rows of expert " + std::to_string(g));
    }
    turn_.assign(tiles_.tiles().size() + 1, -1);
  }

  // Rows for other ranks are gathered and sent, part by part.
  void add_dispatch(const Travel& travel) {
    for (int p = 0; p < parts(); ++p) {
      const auto rows = static_cast<int64_t>(travel.parts()[p].leaving.size());
      int32_t before = p > 0 ? 1 : 0;
      for (int64_t first = 0; first < rows; first += Tiles<S>::kBlock, ++before) {
        plan_.add_task(gather_, static_cast<int>(blocks_.size()), {}, {may_start_[p]});
        blocks_.push_back({p, first, std::min(rows, first + Tiles<S>::kBlock)});
      }
      std::vector<int> waiting{may_start_[parts() + p]};  // also where no row comes
      for (size_t g = 0; g < tiles_.groups().size(); ++g)
        if (ready_[g] >= 0 && tiles_.groups()[g].part == p) waiting.push_back(ready_[g]);
      add_exchange(send_, dispatch_, p, p, {may_start_[p], before}, waiting);
    }
  }
  // `place`: in the order of exchanges; `bumps`: when it has come.
  void add_exchange(int start, int exchange, int part, size_t place, Wait wait, const std::vector<int>& bumps) {
    const int started = plan_.add_counter("exchange " + std::to_string(place));
    std::vector<int> next{started};
    if (place + 1 < may_start_.size()) next.push_back(may_start_[place + 1]);
    plan_.add_task(start, part, wait, next);
    plan_.add_task(exchange, part, {started, 1}, bumps);
  }

  void add_experts() {
    std::vector<bool> is_packed(tiles_.groups().size(), false);
    const auto pack = [&](int64_t g) {
      if (is_packed[g] || !tiles_.groups()[g].is_packed_before()) return;
      is_packed[g] = true;
      std::vector<int> bumps{packed_[g]};
      if (ready_[g] >= 0) bumps.push_back(ready_[g]);
      for (int64_t matrix = 0; matrix < 3; ++matrix) plan_.add_task(pack_, static_cast<int>(3 * g + matrix), {}, bumps);
    };
    for (int p = 0; p < parts(); ++p) {
      int32_t before = 2;  // the exchange before, and that of this part's rows
      const size_t place = parts() + p;
      for_each_tile(true, p, [&](int tile) {
        pack(tiles_.tiles()[tile].group);
        add_expert(tile, {ready_[tiles_.tiles()[tile].group], 1 + packs(tile)}, may_start_[place]);
        ++before;
      });
      add_exchange(send_back_, return_, p, place, {may_start_[place], before}, {all_});
    }
    for_each_tile(false, -1, [&](int tile) {
      pack(tiles_.tiles()[tile].group);
      add_expert(tile, packs(tile) > 0 ? Wait{packed_[tiles_.tiles()[tile].group], packs(tile)} : Wait{}, -1);
      if (sums_weights_ && !has_foreign_rows(tile)) add_weights(tile);
    });
    if (!sums_weights_) return;
    for (int tile = 0; tile < static_cast<int>(tiles_.tiles().size()); ++tile)
      if (has_foreign_rows(tile)) add_weights(tile);
  }
  // How many tasks pack the weights of a tile's expert.
  int32_t packs(int tile) { return tiles_.groups()[tiles_.tiles()[tile].group].is_packed_before() ? 3 : 0; }
  bool has_foreign_rows(int tile) { return tiles_.groups()[tiles_.tiles()[tile].group].foreign_rows() > 0; }
  template <class Add>
  void for_each_tile(bool foreign, int part, const Add& add) {
    for (int tile = 0; tile < static_cast<int>(tiles_.tiles().size()); ++tile) {
      const Tile& t = tiles_.tiles()[tile];
      if (t.foreign == foreign && (part < 0 || tiles_.groups()[t.group].part == part)) add(tile);
    }
  }

  void add_expert(int tile, Wait wait, int also) {
    std::vector<int> bumps{all_};
    if (also >= 0) bumps.push_back(also);
    if (sums_weights_) bumps.push_back(turn_of(tile));
    plan_.add_task(expert_, tile, wait, bumps);
  }
  // The sum over a tile comes after its own derivation and after the sum over the expert's tile before.
  void add_weights(int tile) {
    const std::vector<Tile>& all = tiles_.tiles();
    const bool is_first = tile == 0 || all[tile - 1].group != all[tile].group;
    const bool is_last = tile + 1 == static_cast<int>(all.size()) || all[tile + 1].group != all[tile].group;
    const Wait wait{turn_of(tile), is_first ? 1 : 2};
    is_last ? plan_.add_task(weights_, tile, wait, {}) : plan_.add_task(weights_, tile, wait, {turn_of(tile + 1)});
  }
  int turn_of(int tile) {
    if (turn_[tile] < 0) turn_[tile] = plan_.add_counter("turn of tile " + std::to_string(tile));
    return turn_[tile];
  }

  void carry_out(int stage, int task, Scratch<S>& scratch) {
    if (stage == gather_) return tiles_.gather_leaving(blocks_[task].part, blocks_[task].first, blocks_[task].last);
    if (stage == pack_) return tiles_.pack(tiles_.groups()[task / 3], task % 3);
    if (stage == combine_) return tiles_.add_up(task, to_);
    const Tile& tile = tiles_.tiles()[task];
    if (stage == weights_) return tiles_.weights_backward(tile, scratch);
    is_backward_ ? tiles_.expert_backward(tile, scratch) : tiles_.expert_forward(tile, scratch);
  }
  bool is_done(int stage, int part) {
    Travel& travel = *tiles_.travel();
    if (stage == dispatch_ || stage == return_) return travel.has_come(part);
    if (stage == send_) travel.send(part, tiles_.leaving(part));
    if (stage == send_back_) travel.send_back(part, tiles_.answers(part));
    return true;
  }

  Tiles<S>& tiles_;
  const bool is_backward_, sums_weights_;
  S* to_;
  Plan plan_;
  const int expert_ = plan_.add_stage(is_backward_ ? "expert backward" : "expert", TaskKind::kMatrix),
            weights_ = plan_.add_stage("expert weights", TaskKind::kMatrix), pack_ = plan_.add_stage("pack", TaskKind::kVector),
            gather_ = plan_.add_stage("gather", TaskKind::kVector),
            combine_ = plan_.add_stage(is_backward_ ? "dispatch backward" : "combine", TaskKind::kVector),
            send_ = plan_.add_stage("send", TaskKind::kCommunication),
            dispatch_ = plan_.add_stage("dispatch", TaskKind::kCommunication),
            send_back_ = plan_.add_stage("send back", TaskKind::kCommunication),
            return_ = plan_.add_stage("return", TaskKind::kCommunication);
  int all_;
  std::vector<int> may_start_, packed_, ready_, turn_;  // counters: by exchange, by group twice, by tile
  std::vector<Block> blocks_;                           // by gather task
};

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
void set_gradients(Group<S>* groups, const ExpertGradients& to) {
  if (!to.w1.defined()) return;
  const int64_t matrix = to.w1.size(1) * to.w1.size(2);
  for (int64_t e = 0; e < to.w1.size(0); ++e) {
    groups[e].dw1 = to.w1.mutable_data_ptr<Sum<S>>() + e * matrix, groups[e].dw3 = to.w3.mutable_data_ptr<Sum<S>>() + e * matrix;
    groups[e].dw2 = to.w2.mutable_data_ptr<Sum<S>>() + e * matrix;
    groups[e].is_unset = to.is_unset;
    if (!to.is_unset || groups[e].rows() > 0) continue;
    for (const at::Tensor* whole : {&to.w1, &to.w3, &to.w2}) (*whole)[e].zero_();
  }
}

// Rows that this rank's routed experts meet.
int64_t met_rows(const Call& call) {
  if (!call.peers.group || call.peers.group->size() == 1) return call.order.size(0);
  return call.peers.counts.sum().item<int64_t>();
}

void run(const Call& call, auto& pass) {
  const double waited = pass.run();
  if (call.peers.waited) *call.peers.waited += waited;
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
  if (call.order.defined()) kept.routed = at::empty({met_rows(call), 2 * call.routed.w1.size(1)}, call.x.options());
  if (call.shared.w1.defined()) kept.shared = at::empty({tokens, 2 * call.shared.w1.size(1)}, call.x.options());
  at::Tensor out = at::empty({tokens, d}, call.x.options());
  with_type(call.x.scalar_type(), [&](auto type) {
    using S = decltype(type);
    Tiles<S> tiles(call, kept);
    tiles.prepare_forward();
    Pass<S> pass(tiles, /*is_backward=*/false, /*sums_weights=*/false, out.mutable_data_ptr<S>());
    run(call, pass);
    if (!tiles.travel()) return;
    for (const Travel::Part& part : tiles.travel()->parts()) kept.received.push_back(part.there);
  });
  return out;
}

Gradients backward(const Call& given, const Kept& kept, const at::Tensor& given_dout, const ExpertGradients& routed,
                   const ExpertGradients& shared) {
  const Call call = contiguous(given);
  const at::Tensor dout = given_dout.to(call.x.scalar_type()).contiguous();
  Gradients gradients{at::empty(call.x.sizes(), call.x.options()), {}};
  if (call.weights.defined()) gradients.weights = at::empty_like(call.weights);
  with_type(call.x.scalar_type(), [&](auto type) {
    using S = decltype(type);
    Tiles<S> tiles(call, kept);
    set_gradients(tiles.groups().data(), routed);
    set_gradients(tiles.groups().data() + (call.order.defined() ? call.routed.w1.size(0) : 0), shared);
    tiles.prepare_backward(dout.const_data_ptr<S>(),
                           call.weights.defined() ? gradients.weights.mutable_data_ptr<Sum<S>>() : nullptr, kept.received);
    Pass<S> pass(tiles, /*is_backward=*/true, routed.w1.defined() || shared.w1.defined(), gradients.x.mutable_data_ptr<S>());
    run(call, pass);
  });
  return gradients;
}

}  // namespace hyperparallel::kernels::moe
