// A small program with everything that a real one has: a shared value with three readers, an exchange, a discrete choice, a
// counter, weights of every kind, leaves, state, a loss inside a layer and one behind the layers; and the same mathematics for
// plain autograd.
#pragma once

#include "engine/executor.h"
#include "engine/program.h"
#include "kernels/moe/op.h"
#include "kernels/rows/op.h"
#include "support/tensors.h"

namespace hyperparallel::engine {

using test::normal;
using test::Tensors;

struct Toy {
  static constexpr int64_t kVocabulary = 11, kExperts = 4;
  int64_t width;
  ValueId ids, targets, start, order, offsets, row_count, main_loss, side_loss;
  Program program;
  int choices = 0;                      // how often the route was chosen
  std::function<void()> probe = [] {};  // called when a segment's code starts

  explicit Toy(int64_t width_of = 6) : width(width_of) {
    ProgramBuilder b;
    const Shape stream_shape{"tokens", width};
    ids = b.input("ids", ValueKind::kDiscrete, {"tokens"});
    targets = b.input("targets", ValueKind::kDiscrete, {"tokens"});
    start = b.input("start", ValueKind::kDifferentiable, stream_shape, /*wants_gradient=*/true);

    const ParameterId table = add_parameter(b, "table", {kVocabulary, width}, ParameterUse::kWeight);
    b.close_unit("embed");
    const ValueId stream = b.value("stream", stream_shape);
    b.segment("embed", {ids, start}, {stream}, {table}, [=, this](SegmentRun& run) {
      probe();
      run.make(stream, embedding(run.read(ids), run.weight(table)) + run.read(start));
    });

    b.begin_region("layer 0");
    const ParameterId w_in = add_parameter(b, "w_in", {width, width}, ParameterUse::kWeight),
                      gain = add_parameter(b, "gain", {width}, ParameterUse::kLeaf);
    const ValueId shared = b.value("shared", stream_shape);
    b.segment("share", {stream}, {shared}, {w_in, gain}, [=, this](SegmentRun& run) {
      probe();
      run.make(shared, at::tanh(linear(run.read(stream), run.weight(w_in))) * run.parameter(gain));
    });
    const ParameterId gate = add_parameter(b, "gate", {kExperts, width}, ParameterUse::kWeight),
                      bias = add_parameter(b, "bias", {kExperts}, ParameterUse::kState);
    b.close_unit("layer 0");
    order = b.choice("order", {"tokens"}), offsets = b.choice("offsets", {kExperts + 1});
    row_count = b.choice("row_count", {1});
    const ValueId sent = b.value("sent", stream_shape), scores = b.value("scores", {"tokens"});
    b.segment("route", {shared}, {order, offsets, row_count, sent, scores}, {gate, bias}, [=, this](SegmentRun& run) {
      probe();
      const at::Tensor all = at::sigmoid(linear(run.read(shared), run.weight(gate)));
      kernels::RowOrder rows;
      const at::Tensor row_order = run.choose(order, [&] {
        ++choices;
        rows = kernels::sort_rows((all + run.parameter(bias)).argmax(1, true), kExperts);
        return rows.order;
      });
      const at::Tensor border = run.choose(offsets, [&] { return rows.offsets; });
      run.make(row_count, border.narrow(0, kExperts, 1));
      run.count("loads", border.diff());
      run.make(sent, run.read(shared).index_select(0, row_order));
      run.make(scores, all.index_select(0, row_order).amax(1));
    });
    const ValueId rows = b.launch("rows", ExchangeKind::kAllToAll, "ep", sent, "tokens", row_count, row_count);
    b.end_region();

    b.begin_region("layer 1");
    const ParameterId experts = add_parameter(b, "experts", {kExperts, width, width}, ParameterUse::kWeight);
    b.close_unit("experts");
    b.wait(rows);
    const ValueId computed = b.value("computed", stream_shape);
    side_loss = b.value("side_loss", {});
    b.segment("experts", {rows, offsets, scores}, {computed, side_loss}, {experts}, [=, this](SegmentRun& run) {
      probe();
      const at::Tensor y = grouped_linear(run.read(rows), run.read(offsets), run.weight(experts)) * run.read(scores).unsqueeze(1);
      run.make(computed, y);
      run.make(side_loss, y.square().sum());
    });
    const ValueId mixed = b.value("mixed", stream_shape);
    b.segment("mix", {computed, order, shared, stream}, {mixed}, {}, [=, this](SegmentRun& run) {
      probe();
      run.make(mixed, kernels::combine_rows(run.read(computed), run.read(order), 1) + run.read(shared) * run.read(stream));
    });
    b.end_region();

    b.begin_region("layer 2");
    const ParameterId blocks = add_parameter(b, "blocks", {width, width / 2}, ParameterUse::kWeight);
    b.close_unit("layer 2");
    const ValueId hidden = b.value("hidden", stream_shape);
    b.segment("up", {mixed, shared}, {hidden}, {blocks}, [=, this](SegmentRun& run) {
      probe();
      run.make(hidden, block_linear(run.read(mixed).view({-1, 2, width / 2}), run.weight(blocks)) + run.read(shared));
    });
    b.end_region();

    const ParameterId head = add_parameter(b, "head", {kVocabulary, width}, ParameterUse::kWeight);
    b.close_unit("head");
    main_loss = b.value("loss", {});
    b.segment("loss", {hidden, targets}, {main_loss}, {head}, [=, this](SegmentRun& run) {
      probe();
      run.make(main_loss, linear_cross_entropy(run.read(hidden), run.read(targets), run.weight(head), 3).sum);
    });
    b.loss({main_loss, "main_loss"});
    b.loss({side_loss, "side_loss"});
    program = std::move(b).build();
  }
  Toy(const Toy&) = delete;  // the segments point here

  static ParameterId add_parameter(ProgramBuilder& b, const std::string& name, std::vector<int64_t> shape, ParameterUse use) {
    return b.parameter({name, std::move(shape), use, false, Initialiser::normal(0.7)});
  }

  // Micro-batch `which`, in the given type.
  ValueMap batch(int64_t tokens, int which = 0, at::ScalarType type = at::kDouble) const {
    at::Tensor id = at::remainder(at::arange(tokens) * 7 + which, kVocabulary),
               target = at::remainder(at::arange(tokens) * 5 + which, kVocabulary);
    if (tokens > 2) id[2] = -1, target[1] = -100;
    return {
        {ids.index, id}, {targets.index, target}, {start.index, normal({tokens, width}, "start " + std::to_string(which), type)}};
  }

  // The weighted losses of one micro-batch by plain operations. `p` by parameter, in order; the choice is made anew.
  static at::Tensor plain(const Tensors& p, const at::Tensor& ids, const at::Tensor& targets, const at::Tensor& start,
                          const std::vector<double>& seeds) {
    const at::Tensor &table = p[0], &w_in = p[1], &gain = p[2], &gate = p[3], &bias = p[4], &experts = p[5], &blocks = p[6],
                     &head = p[7];
    const int64_t width = table.size(1);
    const at::Tensor stream = table.index_select(0, ids.clamp_min(0)) * ids.ge(0).unsqueeze(1) + start;
    const at::Tensor shared = at::tanh(at::linear(stream, w_in)) * gain;
    const at::Tensor scores = at::sigmoid(at::linear(shared, gate)), expert = (scores + bias).argmax(1);
    const at::Tensor all = at::einsum("td,eod->teo", {shared, experts});
    const at::Tensor computed = all.gather(1, expert.view({-1, 1, 1}).expand({-1, 1, width})).squeeze(1) * scores.amax(1, true);
    const at::Tensor mixed = computed + shared * stream;
    const at::Tensor hidden = at::einsum("tbi,boi->tbo", {mixed.view({-1, 2, width / 2}), blocks.view({2, width / 2, width / 2})})
                                  .reshape({-1, width}) +
                              shared;
    const at::Tensor loss = at::cross_entropy_loss(at::linear(hidden, head), targets, {}, at::Reduction::Sum, -100);
    return seeds[0] * loss + seeds[1] * computed.square().sum();
  }
};

}  // namespace hyperparallel::engine
