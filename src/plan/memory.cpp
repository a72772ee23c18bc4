#include "plan/memory.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "engine/schedule.h"
#include "plan/messages.h"

namespace hyperparallel::plan {
namespace {

using engine::Action;
using engine::ActionKind;
using engine::ParameterId;
using engine::ValueId;

class Replay {
 public:
  Replay(const PlanRequest& request, int64_t state_bytes)
      : r_(request), program_(*request.program), sizes_(request), schedule_(request.schedule) {
    schedule_.micro_batches = std::min(schedule_.micro_batches, 2);
    now_.state = state_bytes;
  }

  StepMemory run() {
    for (int m = 0; m < r_.schedule.micro_batches; ++m) {
      for (ValueId id : program_.inputs) put({id.index, m}, now_.inputs);
    }
    for (const Action& action : engine::build_schedule(program_, schedule_)) {
      is_last_ = action.micro_batch + 1 == schedule_.micro_batches;
      run(action);
    }
    note(0, "the end of the step");
    return std::move(result_);
  }

 private:
  using Key = std::pair<int, int>;  // (value, segment, exchange or unit; micro-batch)

  // Memory that values share: an exchange of one rank hands its input on.
  struct Storage {
    int64_t bytes = 0;
    int64_t* part = nullptr;  // of now_
    int holders = 0;
  };
  struct Graph {
    std::vector<int> storages;
    int64_t own = 0;
  };

  void note(int64_t work, const std::string& where) {
    MemoryParts parts = now_;
    parts.work = work;
    const int64_t bytes = parts.total();
    if (bytes > result_.at_peak.total()) {
      result_.at_peak = parts;
      result_.where = where;
    }
    highest_ = std::max(highest_, bytes);
  }

  // --- storages ---
  void hold(int storage) {
    if (storages_[storage].holders++ == 0) *storages_[storage].part += storages_[storage].bytes;
  }
  void drop(int storage) {
    if (--storages_[storage].holders == 0) *storages_[storage].part -= storages_[storage].bytes;
  }
  void put(Key value, int64_t& part) { put(value, new_storage(sizes_.bytes_of(ValueId{value.first}), part)); }
  void put(Key value, int storage) {
    hold(storage);
    const auto [it, is_new] = values_.try_emplace(value, storage);
    if (is_new) return;
    drop(it->second);  // made again
    it->second = storage;
  }
  int new_storage(int64_t bytes, int64_t& part) {
    storages_.push_back({bytes, &part, 0});
    return static_cast<int>(storages_.size()) - 1;
  }
  void release(Key value) {
    const auto it = values_.find(value);
    if (it == values_.end()) return;
    drop(it->second);
    values_.erase(it);
  }

  int64_t sum_bytes(ValueId id) const {  // of a value's gradient
    return sizes_.elements_of(program_.values[id.index].shape) * r_.master_bytes;
  }
  // A single contribution keeps its type, of so many bytes.
  void add_sum(ValueId id, int m, int64_t bytes) {
    int64_t& held = sums_[{id.index, m}];
    const int64_t before = std::exchange(held, held > 0 ? sum_bytes(id) : bytes);
    now_.value_sums += held - before;
  }
  void take_sum(ValueId id, int m) {
    const auto found = sums_.find({id.index, m});
    if (found == sums_.end()) return;
    now_.value_sums -= found->second;
    sums_.erase(found);
  }

  // --- actions ---
  void run(const Action& action) {
    switch (action.kind) {
      case ActionKind::kForward:
      case ActionKind::kRecompute:
        forward(action);
        break;
      case ActionKind::kBackward:
        backward(action);
        break;
      case ActionKind::kLaunch:
        launch(action);
        break;
      case ActionKind::kWait:
        wait(action);
        break;
      case ActionKind::kLaunchTranspose:
        launch_transpose(action);
        break;
      case ActionKind::kWaitTranspose:
        wait_transpose(action);
        break;
      case ActionKind::kLaunchGather:
        launch_gather(action.index);
        break;
      case ActionKind::kWaitGather:
        wait_gather(action.index);
        break;
      case ActionKind::kReleaseUnit:
        for (ParameterId id : program_.units[action.index].parameters) now_.copies -= copy_bytes(id);
        break;
      case ActionKind::kLaunchReduce:
        launch_reduce(action.index);
        break;
      case ActionKind::kWaitReduce:
        wait_reduce(action);
        break;
      case ActionKind::kReleaseValue:
      case ActionKind::kWaitOffload:  // it rests in a file
        release({action.index, action.micro_batch});
        break;
      case ActionKind::kLaunchOffload:
        break;
      case ActionKind::kLaunchFetch:
        now_.messages += sizes_.bytes_of(ValueId{action.index});
        break;
      case ActionKind::kWaitFetch:
        now_.messages -= sizes_.bytes_of(ValueId{action.index});
        put({action.index, action.micro_batch}, now_.values);
        break;
    }
  }

  // A point of the curve: the highest within this run of a segment.
  void end_of_segment() {
    if (is_last_) result_.curve.push_back(highest_);
    highest_ = 0;
  }

  void forward(const Action& action) {
    const engine::Segment& segment = program_.segments[action.index];
    const int m = action.micro_batch;
    const bool keeps = action.keep_graph && program_.has_backward[action.index];
    Graph graph;
    int64_t makes = 0;
    std::vector<std::pair<Key, int>> made;
    for (ValueId id : segment.makes) {
      const bool given = action.kind == ActionKind::kRecompute && program_.values[id.index].kind == engine::ValueKind::kDiscrete;
      if (given) continue;
      makes += sizes_.bytes_of(id);
      made.push_back({{id.index, m}, new_storage(sizes_.bytes_of(id), now_.values)});
    }
    const int64_t saved = sizes_.bytes_of(segment.footprint.saved);
    note(makes + (keeps ? saved : 0) + sizes_.bytes_of(segment.footprint.forward), "forward of " + segment.name);
    if (keeps) {
      graph.own = saved;
      for (ValueId id : segment.reads) graph.storages.push_back(values_.at({id.index, m}));
      for (const auto& [key, storage] : made) graph.storages.push_back(storage);
      for (int storage : graph.storages) hold(storage);
      now_.graphs += graph.own;
      graphs_[{action.index, m}] = std::move(graph);
    }
    for (const auto& [key, storage] : made) put(key, storage);
    end_of_segment();
  }

  void backward(const Action& action) {
    const engine::Segment& segment = program_.segments[action.index];
    const int m = action.micro_batch;
    const Graph graph = std::move(graphs_.at({action.index, m}));
    graphs_.erase({action.index, m});
    int64_t seeds = 0, raw = 0, sums = 0;
    for (ValueId id : segment.makes) {
      take_sum(id, m);
      if (program_.needs_gradient[id.index]) seeds += sizes_.bytes_of(id);
    }
    for (ParameterId id : segment.parameters) {
      if (!program_.gets_gradient[id.index]) continue;
      if (is_table(id)) {
        // By rows, until the step ends; micro-batches that are not replayed leave theirs, too. Merged, they are no more than the
        // rows that the rank owns, and as many again wait or are being merged.
        const int64_t times = is_last_ ? r_.schedule.micro_batches - m : 1;
        int64_t& rows = row_gradients_[id.index];
        int64_t added = rows;
        for (ValueId made : segment.makes) added += times * sum_bytes(made);
        added = std::min(added, 3 * owned_bytes(id));
        now_.gradients += added - rows;
        rows = added;
      } else if (slots_.insert(id.index).second) {
        now_.slots += slot_bytes(id);
      }
    }
    for (ValueId id : segment.reads) {
      if (!program_.needs_gradient[id.index]) continue;
      raw += sizes_.bytes_of(id);
      if (const auto held = sums_.find({id.index, m}); held != sums_.end()) sums += sum_bytes(id) - held->second;
    }
    note(seeds + std::max(sizes_.bytes_of(segment.footprint.backward), raw + sums), "backward of " + segment.name);
    for (int storage : graph.storages) drop(storage);
    now_.graphs -= graph.own;
    for (ValueId id : segment.reads) {
      if (program_.needs_gradient[id.index]) add_sum(id, m, sizes_.bytes_of(id));
    }
    end_of_segment();
  }

  bool is_local(const engine::Exchange& exchange) const {
    return exchange.kind == engine::ExchangeKind::kEnter || r_.layout.size(exchange.axis) == 1;
  }

  void launch(const Action& action) {
    const engine::Exchange& exchange = program_.exchanges[action.index];
    const Key input{exchange.input.index, action.micro_batch};
    int& storage = arriving_[{action.index, action.micro_batch}];
    storage = is_local(exchange) ? values_.at(input) : new_storage(sizes_.bytes_of(exchange.output), now_.messages);
    sending_[{action.index, action.micro_batch}] = values_.at(input);
    hold(storage);
    hold(values_.at(input));
    note(received_beside(sizes_.forward(exchange), exchange.axis), "exchange " + exchange.name);
  }
  void wait(const Action& action) {
    const engine::Exchange& exchange = program_.exchanges[action.index];
    const Key key{action.index, action.micro_batch}, output{exchange.output.index, action.micro_batch};
    const int storage = arriving_.at(key);
    if (exchange.order.valid()) note(sizes_.bytes_of(exchange.output), "exchange " + exchange.name);
    drop(sending_.at(key));
    if (is_local(exchange) && !exchange.order.valid()) {
      put(output, storage);
    } else {
      put(output, now_.values);
    }
    drop(storage);
  }

  void launch_transpose(const Action& action) {
    const engine::Exchange& exchange = program_.exchanges[action.index];
    take_sum(exchange.output, action.micro_batch);
    int64_t& bytes = returning_[{action.index, action.micro_batch}];
    bytes = sum_bytes(exchange.output);
    const auto message = sizes_.backward(exchange);
    if (message) bytes += sum_bytes(exchange.input);
    now_.messages += bytes;
    note(received_beside(message, exchange.axis), "transpose of " + exchange.name);
  }
  void wait_transpose(const Action& action) {
    const engine::Exchange& exchange = program_.exchanges[action.index];
    now_.messages -= returning_.at({action.index, action.micro_batch});
    add_sum(exchange.input, action.micro_batch, is_local(exchange) ? sizes_.bytes_of(exchange.input) : sum_bytes(exchange.input));
    note(sums_.contains({exchange.input.index, action.micro_batch}) ? sum_bytes(exchange.input) : 0,
         "transpose of " + exchange.name);
  }

  // Parts that came for a sum, beside the result.
  int64_t received_beside(const std::optional<Message>& message, const std::string& axis) const {
    if (!message || (message->kind != "reduce-scatter" && message->kind != "all-reduce")) return 0;
    const int64_t ranks = r_.layout.size(axis);
    return message->bytes / ranks * (ranks - 1);
  }

  // --- units ---
  bool is_sharded(ParameterId id) const {
    const engine::ParameterSpec& spec = program_.parameters[id.index];
    return spec.travels() && r_.layout.size(engine::shard_axis(spec)) > 1;
  }
  bool is_table(ParameterId id) const { return program_.parameters[id.index].use == engine::ParameterUse::kTable; }
  // Of the compute copy; the master itself serves where it has the type and all rows.
  int64_t copy_bytes(ParameterId id) const {
    const engine::ParameterSpec& spec = program_.parameters[id.index];
    const bool is_master = spec.keep_master_type || r_.compute_bytes == r_.master_bytes;
    return !is_table(id) && (is_sharded(id) || !is_master) ? sizes_.compute_bytes(spec) : 0;
  }
  int64_t slot_bytes(ParameterId id) const {
    return volume(engine::place(program_.parameters[id.index], r_.layout).part.size) * r_.master_bytes;
  }
  int64_t owned_bytes(ParameterId id) const { return owned_elements(program_.parameters[id.index], r_.layout) * r_.master_bytes; }

  void launch_gather(int unit) {
    int64_t& bytes = gathering_[unit];
    bytes = 0;
    for (ParameterId id : program_.units[unit].parameters) {
      if (!is_sharded(id)) continue;
      const int64_t whole = copy_bytes(id);
      bytes += whole + whole / std::max<int64_t>(1, r_.layout.size(engine::shard_axis(program_.parameters[id.index])));
    }
    now_.messages += bytes;
    note(0, "gather of " + program_.units[unit].name);
  }
  void wait_gather(int unit) {
    for (ParameterId id : program_.units[unit].parameters) now_.copies += copy_bytes(id);
    note(0, "gather of " + program_.units[unit].name);
    now_.messages -= gathering_.at(unit);
  }

  void launch_reduce(int unit) {
    int64_t& bytes = reducing_[unit];
    bytes = 0;
    int64_t whole = 0;
    for (ParameterId id : program_.units[unit].parameters) {
      if (!program_.gets_gradient[id.index] || !is_sharded(id)) continue;
      whole += slot_bytes(id);
      bytes += slot_bytes(id) + owned_bytes(id);
    }
    now_.messages += bytes;
    note(0, "reduction of " + program_.units[unit].name);
    for (ParameterId id : program_.units[unit].parameters) {
      if (is_sharded(id) && slots_.erase(id.index) > 0) now_.slots -= slot_bytes(id);
    }
    note(whole, "reduction of " + program_.units[unit].name);  // what other ranks sent
  }
  void wait_reduce(const Action& action) {
    int64_t partial = 0;
    for (ParameterId id : program_.units[action.index].parameters) {
      if (!program_.gets_gradient[id.index] || is_table(id)) continue;
      if (!is_sharded(id) && slots_.erase(id.index) > 0) now_.slots -= slot_bytes(id);
      if (gradients_.insert(id.index).second) now_.gradients += owned_bytes(id);
      if (program_.parameters[id.index].partial_over_tp && r_.layout.size("tp") > 1) partial += 2 * owned_bytes(id);
    }
    note(0, "reduction of " + program_.units[action.index].name);
    now_.messages -= reducing_.at(action.index);
    if (action.last) note(partial, "sum of " + program_.units[action.index].name);
  }

  const PlanRequest& r_;
  const engine::Program& program_;
  const Messages sizes_;
  engine::ScheduleOptions schedule_;
  MemoryParts now_;
  StepMemory result_;
  int64_t highest_ = 0;
  std::map<int, int64_t> row_gradients_;  // by table
  bool is_last_ = false;
  std::vector<Storage> storages_;
  std::map<Key, int> values_;                    // (value, micro-batch) -> storage
  std::map<Key, int64_t> sums_;                  // bytes of a value's gradient, by (value, micro-batch)
  std::map<Key, Graph> graphs_;                  // (segment, micro-batch)
  std::map<Key, int> arriving_, sending_;        // (exchange, micro-batch) -> storage
  std::map<Key, int64_t> returning_;             // (exchange, micro-batch) -> bytes
  std::map<int, int64_t> gathering_, reducing_;  // unit -> bytes
  std::set<int> slots_, gradients_;              // parameters
};

}  // namespace

StepMemory replay_memory(const PlanRequest& request, int64_t state_bytes) {
  return Replay(request, state_bytes).run();
}

}  // namespace hyperparallel::plan
