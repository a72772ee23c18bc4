#include "kernels/moe/op.h"

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include <numeric>

#include "engine/experts.h"
#include "kernels/balance/op.h"
#include "kernels/types.h"
#include "models/deepseek_v41/builder.h"

namespace hyperparallel::models::deepseek_v41 {

using engine::ExchangeKind;
using engine::ParameterId;
using engine::SegmentRun;
using engine::ValueId;

namespace {

// How many tokens of each modality chose each expert, int64 [2, experts]: text, image. Padding counts nowhere.
at::Tensor loads_of(const at::Tensor& expert_ids, const at::Tensor& image, const at::Tensor& padding, int64_t experts) {
  const auto count = [&](const at::Tensor& tokens) {
    return at::bincount(expert_ids.index_select(0, tokens.nonzero().flatten()).flatten(), {}, experts);
  };
  const at::Tensor real = padding.logical_not();
  return at::stack({count(real.logical_and(image.logical_not())), count(real.logical_and(image))});
}

}  // namespace

namespace {

// How the rows that came from all ranks, each sorted by expert, are arranged for the experts of this rank.
struct Arrangement {
  at::Tensor receive_rows;  // int64 [ranks]
  at::Tensor offsets;       // int64 [experts + 1], of the arranged rows
  at::Tensor order;         // int64 [rows]: the received row that becomes row i; empty where one rank sent all
};
// `counts` int64 [ranks, experts]: rows of each expert from each rank.
Arrangement arrange(const at::Tensor& counts) {
  const int64_t ranks = counts.size(0), experts = counts.size(1);
  const at::Tensor table = counts.contiguous();
  const int64_t* count = table.const_data_ptr<int64_t>();
  std::vector<int64_t> rows(ranks), offsets{0}, order, next;  // next: the first unread row of each rank
  int64_t total = 0;
  for (int64_t rank = 0; rank < ranks; ++rank) {
    next.push_back(total);
    rows[rank] = std::accumulate(count + rank * experts, count + (rank + 1) * experts, int64_t{0});
    total += rows[rank];
  }
  for (int64_t expert = 0; expert < experts; ++expert) {
    int64_t end = offsets.back();
    for (int64_t rank = 0; rank < ranks; ++rank) {
      const int64_t n = count[rank * experts + expert];
      for (int64_t i = 0; i < n && ranks > 1; ++i) order.push_back(next[rank]++);
      end += n;
    }
    offsets.push_back(end);
  }
  return {tensor_of(rows), tensor_of(offsets), tensor_of(order)};
}

at::Tensor arranged(const at::Tensor& received, const at::Tensor& order) {
  return order.size(0) == 0 ? received : received.index_select(0, order);
}

at::Tensor back_in_order(const at::Tensor& arranged, const at::Tensor& order) {
  return order.size(0) == 0 ? arranged : arranged.index_select(0, order.argsort());
}

bool is_mega(ModelBuilder& builder, const char* operation, int64_t experts, int64_t width) {
  const int64_t d = builder.text().hidden_size;
  return builder.choose(operation, fmt::format("{} of {} x {} x 3", experts, d, width), builder.options.kernels.moe,
                        kernels::expert_candidates(builder.options.compute, d, width)) == kernels::Implementation::kMega;
}
kernels::Implementation gate_kernel(ModelBuilder& builder, int64_t experts) {
  return builder.choose("gate", fmt::format("{} experts", experts), builder.options.kernels.gate,
                        kernels::gate_candidates(/*on_cpu=*/true));
}

struct MoeLayer {
  ModelBuilder& builder;
  const Block& block;
  const TextConfig& text = builder.text();
  engine::ProgramBuilder& program = builder.program;
  int64_t d = text.hidden_size, width = text.moe_intermediate_size, experts = block.experts, k = block.top_k;
  std::string prefix = block.parameters + "ffn.", name = block.name + ".ffn", shard = builder.rows.shard;
  std::string choices = shard == "shard" ? "choices" : shard + ".choices";  // rows of the shard * k
  // Experts lie over ep and rows travel to them; or every rank has all, and rows stay.
  std::vector<std::string> weights{prefix + "experts.w1.weight", prefix + "experts.w3.weight", prefix + "experts.w2.weight"};
  bool whole = builder.way_of(weights, {{kByExpert, kByExpert, kByExpert}, {Cut{}, Cut{}, Cut{}}}) == 1;
  Cut cut = whole ? Cut{} : kByExpert;
  bool mega = is_mega(builder, "experts", experts, width);
  int64_t ranks = whole ? 1 : builder.layout().size("ep"), local = builder.local(experts, cut);
  std::string received = whole ? choices : name + ".received";  // symbol
  ValueId order{}, send_rows{}, sent{}, sent_weights{}, counts{};
  ValueId receive_rows{}, offsets{}, arrangement{};
  ModelBuilder::RouterSums sums = {};

  // Which experts, with which weights, and the rows of tokens sorted by expert, hence by the rank that has it.
  void add_route(ValueId x) {
    const ParameterId gate = builder.weight(prefix + "gate.weight", {experts, d});
    const ParameterId bias = builder.state(prefix + "gate.bias", {experts}),
                      bias_vl = builder.state(prefix + "gate.bias_vl", {experts});
    const ValueId ids = program.choice(block.name + ".expert_ids", {shard, k});
    order = program.choice(name + ".order", {choices}), counts = program.choice(name + ".counts", {experts});
    if (!mega) send_rows = program.choice(name + ".send_rows", {ranks}), sent = program.value(name + ".sent", {choices, d});
    sent_weights = program.value(name + ".sent_weights", {choices});
    const auto [image, padding, sequence, lengths] = builder.row_kinds;
    std::vector<ValueId> reads{x, image, padding}, makes{ids, order, counts, sent_weights};
    if (!mega) makes.insert(makes.end(), {send_rows, sent});
    if (sequence.valid()) {
      sums = {program.value(name + ".sequence_shares", {"sequences", experts}),
              program.choice(name + ".own_sequence_counts", {"sequences", experts})};
      reads.insert(reads.end(), {sequence, lengths});
      makes.insert(makes.end(), {sums.shares, sums.counts});
    }
    program.segment(
        name + ".route", reads, makes, {gate, bias, bias_vl},
        [=, image = image, padding = padding, sequence = sequence, lengths = lengths, name = block.name, shard = shard,
         sums = sums, k = k, experts = experts, order = order, counts = counts, send_rows = send_rows, sent = sent,
         sent_weights = sent_weights, owners = engine::even_parts(experts, ranks), how = gate_kernel(builder, experts),
         rule = kernels::RouterRule{k, text.gate_temp, text.norm_topk_prob, text.routed_scaling_factor}](SegmentRun& run) {
          const at::Tensor& input = run.read(x);
          const at::Tensor logits = engine::linear(kernels::to_math(input), run.weight(gate));
          kernels::Routed routed;
          const at::Tensor chosen = run.choose(ids, [&] {
            const at::AutoGradMode derived(true);  // choices are made without a graph, weights belong to it
            routed = kernels::route(logits, {{}, run.parameter(bias), run.parameter(bias_vl), run.read(image)}, rule, how);
            return routed.ids;
          });
          if (!routed.ids.defined()) routed = kernels::route(logits, {chosen, {}, {}, {}}, rule, how);  // recomputed
          kernels::RowOrder rows;
          const at::Tensor row_order = run.choose(order, [&] { return (rows = kernels::sort_rows(chosen, experts)).order; });
          const at::Tensor per_expert = run.choose(counts, [&] { return rows.offsets.diff(); });
          if (sent.valid()) {
            run.choose(send_rows, [&] {
              std::vector<at::Tensor> sums;
              for (const at::Tensor& part : per_expert.split_with_sizes(owners)) sums.push_back(part.sum());
              return at::stack(sums);
            });
            run.make(sent, kernels::dispatch_rows(input, row_order, k));
          }
          run.make(sent_weights, routed.weights.reshape({-1}).index_select(0, row_order));
          if (sums.shares.valid()) {
            const int64_t sequences = run.read(lengths).size(0);
            run.make(sums.shares, kernels::sequence_shares(routed.scores, run.read(sequence), sequences));
            run.choose(sums.counts, [&] { return kernels::sequence_counts(chosen, run.read(sequence), sequences, experts); });
          }
          run.count(name + ".loads", loads_of(chosen, run.read(image), run.read(padding), experts));
          run.observe(name + ".router_scores", shard, [&] { return routed.scores; });
          run.observe(name + ".expert_weights", shard, [&] { return routed.weights; });
        });
    if (!sums.shares.valid()) return;
    sums.counts = program.launch(name + ".sequence_counts", ExchangeKind::kAllReduce, "sample", sums.counts);
    builder.router_sums.push_back(sums);
  }

  // int64 [ranks * local]: what comes from where.
  ValueId add_counts() {
    return whole ? counts
                 : program.exchange(name + ".row_counts", ExchangeKind::kAllToAll, "ep", counts, ranks * local,
                                    engine::even_parts(experts, ranks), std::vector<int64_t>(ranks, local));
  }
  void add_arrangement(ValueId table) {
    receive_rows = program.choice(name + ".receive_rows", {ranks}), offsets = program.choice(name + ".offsets", {local + 1});
    arrangement = program.choice(name + ".arrangement", {name + ".arranged"});
    program.segment(name + ".arrange", {table}, {receive_rows, offsets, arrangement}, {},
                    [=, ranks = ranks, local = local, receive_rows = receive_rows, offsets = offsets,
                     arrangement = arrangement](SegmentRun& run) {
                      const Arrangement found = arrange(run.read(table).view({ranks, local}));
                      run.make(receive_rows, found.receive_rows);
                      run.make(offsets, found.offsets);
                      run.make(arrangement, found.order);
                    });
  }

  struct Parameters {
    ParameterId w1, w3, w2;
    std::vector<ParameterId> ids() const { return {w1, w3, w2}; }
    engine::ExpertWeights read(SegmentRun& run) const { return {run.weight(w1), run.weight(w3), run.weight(w2)}; }
  };
  Parameters declare_experts() {
    const Parameters declared{builder.weight(weights[0], {experts, width, d}, cut),
                              builder.weight(weights[1], {experts, width, d}, cut),
                              builder.weight(weights[2], {experts, d, width}, cut)};
    program.close_unit(name + ".experts");
    return declared;
  }

  // What the experts make of the rows that travelled, in the order of the choices.
  ValueId add_experts() {
    ValueId rows = sent, row_weights = sent_weights;
    if (!whole) {
      rows = program.launch(name + ".rows", ExchangeKind::kAllToAll, "ep", sent, received, send_rows, receive_rows);
      row_weights =
          program.launch(name + ".row_weights", ExchangeKind::kAllToAll, "ep", sent_weights, received, send_rows, receive_rows);
      program.wait(rows);
      program.wait(row_weights);
    }
    const Parameters w = declare_experts();
    const ValueId computed = program.value(name + ".computed", {received, d});
    program.segment(name + ".experts", {rows, row_weights, offsets, arrangement}, {computed}, w.ids(),
                    [=, limit = text.swiglu_limit, offsets = offsets, arrangement = arrangement](SegmentRun& run) {
                      const at::Tensor &group = run.read(offsets), &order = run.read(arrangement);
                      const at::Tensor weights = arranged(run.read(row_weights), order);
                      const at::Tensor input = arranged(run.read(rows), order);
                      const at::Tensor g = engine::grouped_linear(input, group, run.weight(w.w1)),
                                       u = engine::grouped_linear(input, group, run.weight(w.w3));
                      const at::Tensor y =
                          engine::grouped_linear(kernels::clamped_swiglu(g, u, weights, limit), group, run.weight(w.w2));
                      run.make(computed, back_in_order(y, order));
                    });
    if (whole) return computed;
    return program.exchange(name + ".returned", ExchangeKind::kAllToAll, "ep", computed, choices, receive_rows, send_rows);
  }

  // One operation for all experts, between which rows travel in it; `shared`: with the shared expert, too.
  ValueId add_mega(ValueId x, ValueId table, const std::string& result, const std::optional<Parameters>& shared) {
    const Parameters w = declare_experts();
    const ValueId made = program.value(result, {shard, d});
    std::vector<ParameterId> parameters = w.ids();
    if (shared)
      for (ParameterId id : shared->ids()) parameters.push_back(id);
    std::vector<ValueId> reads{x, sent_weights, order, counts};
    if (!whole) reads.push_back(table);
    program.segment(name + ".experts", reads, {made}, parameters,
                    [=, row_weights = sent_weights, order = order, counts = counts, k = k, name = name, ranks = ranks,
                     limit = text.swiglu_limit](SegmentRun& run) {
                      const at::Tensor& own = run.read(counts);
                      const at::Tensor offsets = at::cat({own.new_zeros({1}), own.cumsum(0)});
                      engine::RoutedExperts routed{run.read(order), offsets, run.read(row_weights), k, w.read(run), {}};
                      if (ranks > 1) routed.ranks = {&run.group("ep"), run.read(table), name, &run.wait_clock().of("ep")};
                      std::optional<engine::ExpertWeights> beside;
                      if (shared) beside = shared->read(run);
                      run.make(made, engine::expert_layer(run.read(x), routed, beside, limit));
                    });
    return made;
  }
};

// The shared expert: every tp rank takes its part of the tokens, or its channels of all tokens.
struct SharedExpert {
  MoeLayer::Parameters parameters;
  double limit;
  bool mega;
  at::Tensor operator()(SegmentRun& run, const at::Tensor& x) const {
    const engine::ExpertWeights w = parameters.read(run);
    if (mega) return engine::expert_layer(x, {}, w, limit);
    const at::Tensor g = engine::linear(x, w.w1), u = engine::linear(x, w.w3);
    return engine::linear(kernels::clamped_swiglu(g, u, {}, limit), w.w2);
  }
};

}  // namespace

ValueId add_moe(ModelBuilder& builder, const Block& block, ValueId streams_x) {
  builder.partial = true;
  MoeLayer moe{builder, block};
  engine::ProgramBuilder& program = builder.program;
  const ValueId x = enter_shard(builder, moe.name + ".x", streams_x);
  moe.add_route(x);
  const std::string prefix = moe.prefix + "shared_experts.";
  const bool by_channel = builder.way_of({prefix + "w1.weight", prefix + "w3.weight", prefix + "w2.weight"},
                                         {{Cut{}, Cut{}, Cut{}}, {kByHead, kByHead, kByInput}}) == 1;
  const Cut into = by_channel ? kByHead : Cut{}, out_of = by_channel ? kByInput : Cut{};
  const SharedExpert shared{{builder.weight(prefix + "w1.weight", {moe.width, moe.d}, into),
                             builder.weight(prefix + "w3.weight", {moe.width, moe.d}, into),
                             builder.weight(prefix + "w2.weight", {moe.d, moe.width}, out_of)},
                            builder.text().swiglu_limit,
                            is_mega(builder, "shared expert", 1, builder.local(moe.width, into))};
  program.close_unit(moe.name);
  const ValueId table = moe.add_counts();
  ValueId shared_sum;
  if (by_channel) {
    const ValueId all = enter_tokens(builder, moe.name + ".shared_x", streams_x);
    const ValueId part = program.value(moe.name + ".shared_part", {builder.rows.tokens, moe.d});
    program.segment(moe.name + ".shared", {all}, {part}, shared.parameters.ids(),
                    [=](SegmentRun& run) { run.make(part, shared(run, run.read(all))); });
    shared_sum =
        program.launch(moe.name + ".shared_sum", ExchangeKind::kReduceScatter, "tp", part, moe.shard, builder.rows.tp_rows);
  }
  const std::string result = block.name + ".ffn_out";
  const auto finish = [&] {
    if (moe.sums.counts.valid()) program.wait(moe.sums.counts);
    return program.value(leaving_shard(builder, result), {moe.shard, moe.d});
  };
  if (moe.mega) {
    if (!by_channel) {
      if (moe.sums.counts.valid()) program.wait(moe.sums.counts);
      return leave_shard(builder, result, moe.add_mega(x, table, leaving_shard(builder, result), shared.parameters));
    }
    const ValueId made = moe.add_mega(x, table, moe.name + ".computed", {}), out = finish();
    program.wait(shared_sum);
    program.segment(moe.name + ".combine", {made, shared_sum}, {out}, {},
                    [=](SegmentRun& run) { run.make(out, run.read(made) + run.read(shared_sum)); });
    return leave_shard(builder, result, out);
  }
  moe.add_arrangement(table);
  const ValueId returned = moe.add_experts();
  const ValueId out = finish();
  std::vector<ValueId> reads{x, returned, moe.order};
  std::vector<ParameterId> parameters = shared.parameters.ids();
  if (by_channel) {
    program.wait(shared_sum);
    reads.push_back(shared_sum);
    parameters.clear();
  }
  program.segment(moe.name + ".combine", reads, {out}, parameters, [=, order = moe.order, k = moe.k](SegmentRun& run) {
    const at::Tensor& input = run.read(x);
    const at::Tensor beside = by_channel ? run.read(shared_sum) : shared(run, input);
    run.make(out,
             (kernels::combine_rows(run.read(returned), run.read(order), k) + kernels::to_math(beside)).to(input.scalar_type()));
  });
  return leave_shard(builder, result, out);
}

}  // namespace hyperparallel::models::deepseek_v41
